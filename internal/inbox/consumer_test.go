package inbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/testenv"
)

const waitLimit = time.Minute

// want is a condition for testenv.Eventually.
func want(err error, want, got int) error {
	if err == nil && got != want {
		err = fmt.Errorf("%d, want %d", got, want)
	}
	return err
}

// bench is a database with an effect that is not idempotent, a topic, and what a consumer said.
type bench struct {
	db      *testenv.DB
	owner   *pgxpool.Pool
	brokers []string
	topic   string
	client  *kgo.Client

	mu       sync.Mutex
	log      bytes.Buffer
	outcomes map[string]int
	gaps     map[string]int
	short    error            // what OnHorizon was told last
	trimmed  int              // … and how often
	passes   map[[2]int64]int // what OnLetters was told, and how often
	lag      int64
}

func newBench(t *testing.T, brokers []string, partitions int32) *bench {
	t.Helper()
	b := &bench{db: testenv.Database(t), brokers: brokers, topic: testenv.TopicPrefix(t) + "things", outcomes: map[string]int{}, gaps: map[string]int{}, passes: map[[2]int64]int{}, lag: -1}
	b.owner = b.db.Pool(t, "")
	_, err := b.owner.Exec(t.Context(), `CREATE TABLE effects (subject text PRIMARY KEY, n int NOT NULL, last bigint NOT NULL); GRANT ALL ON effects TO consumer`)
	if err != nil {
		t.Fatal(err)
	}
	// A broker may not know yet a topic that its controller has made.
	b.client, err = kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0), kgo.UnknownTopicRetries(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.client.Close)
	if partitions > 0 {
		b.makeTopic(t, partitions)
	}
	return b
}

func (b *bench) makeTopic(t *testing.T, partitions int32) {
	t.Helper()
	if _, err := kadm.NewClient(b.client).CreateTopic(t.Context(), partitions, 1, nil, b.topic); err != nil {
		t.Fatal(err)
	}
}

// event is a record as the relay makes it. Headers given replace its own; an empty value takes one away.
func (b *bench) event(partition int32, id uuid.UUID, subject string, headers ...string) *kgo.Record {
	values := map[string]string{
		"ce_specversion": "1.0", "ce_id": id.String(), "ce_source": "/test", "ce_type": "thing.done", "ce_subject": subject,
		"ce_time": time.Now().UTC().Format(time.RFC3339Nano), "ce_sequence": "1", "content-type": "application/json",
	}
	for i := 0; i < len(headers); i += 2 {
		values[headers[i]] = headers[i+1]
	}
	r := &kgo.Record{Topic: b.topic, Partition: partition, Key: []byte(subject), Value: []byte(`{}`)}
	for key, value := range values {
		if value != "" {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: key, Value: []byte(value)})
		}
	}
	return r
}

func (b *bench) produce(t *testing.T, rs ...*kgo.Record) {
	t.Helper()
	if err := b.client.ProduceSync(t.Context(), rs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// count is the effect: not idempotent, and it sees order.
func count(ctx context.Context, tx pgx.Tx, events []inbox.Event) error {
	for _, e := range events {
		if e.Type == "thing.poisoned" {
			return errors.New("it is poisoned")
		}
		_, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1, 1, $2)
			ON CONFLICT (subject) DO UPDATE SET n = effects.n + 1, last = excluded.last`, e.Subject, e.Offset)
		if err != nil {
			return err
		}
	}
	return nil
}

// consumer is ready to run, with everything it says kept in the bench.
func (b *bench) consumer(t *testing.T) *inbox.Consumer {
	return &inbox.Consumer{
		DB: b.db.Pool(t, "consumer"), Name: "test", Handle: count, Tries: 3, TryFor: 50 * time.Millisecond,
		Kafka: inbox.Kafka{Brokers: b.brokers, Group: b.topic, Topics: []string{b.topic}},
		Log:   slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug})),
		OnEvent: func(outcome string, _ time.Duration) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.outcomes[outcome]++
		},
		OnGap: func(kind string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.gaps[kind]++
		},
		OnLetters: func(undecided, aggregates int64) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.passes[[2]int64{undecided, aggregates}]++
		},
		OnHorizon: func(err error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.short = err
			b.trimmed++
		},
		OnLag: func(events int64) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.lag = events
		},
	}
}

func (b *bench) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log.Write(p)
}

func (b *bench) logged() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log.String()
}

func (b *bench) outcome(name string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.outcomes[name]
}

func (b *bench) gapsSeen() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.gaps)
}

// start runs a consumer until stop is called or the test ends.
func (b *bench) start(t *testing.T, c *inbox.Consumer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
		if t.Failed() {
			t.Log(b.logged())
		}
	})
	t.Cleanup(stop)
	return stop
}

// effects waits until so many things have taken effect, and fails if one did so more than once.
func (b *bench) effects(t *testing.T, n int) {
	t.Helper()
	testenv.Eventually(t, waitLimit, func() error {
		var got int
		err := b.owner.QueryRow(t.Context(), `SELECT count(*) FROM effects`).Scan(&got)
		return want(err, n, got)
	})
	var highest int
	if err := b.owner.QueryRow(t.Context(), `SELECT max(n) FROM effects`).Scan(&highest); err != nil || highest != 1 {
		t.Errorf("something took effect %d times, %v", highest, err)
	}
}

func TestRedeliveredEventTakesEffectOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, testenv.Brokers(t), 3)
	var rs []*kgo.Record
	for i := range 300 {
		id := uuid.New()
		subject, partition := strconv.Itoa(i), int32(i%3)
		rs = append(rs, b.event(partition, id, subject), b.event(partition, id, subject))
	}
	b.start(t, b.consumer(t))
	b.produce(t, rs...)
	b.produce(t, b.event(0, uuid.New(), "last"))
	b.effects(t, 301)
	testenv.Eventually(t, waitLimit, func() error {
		return errors.Join(want(nil, 300, b.outcome(inbox.Duplicate)), want(nil, 301, b.outcome(inbox.Processed)))
	})
}

func TestKilledBeforeOffsetTakesEffectOnce(t *testing.T) {
	t.Parallel()
	cluster := kfake.MustCluster(kfake.NumBrokers(1))
	t.Cleanup(cluster.Close)
	b := newBench(t, cluster.ListenAddrs(), 2)
	// Offsets that do not arrive are what a consumer leaves behind that is killed there.
	watchCommits(cluster).refuse.Store(true)
	for i := range 100 {
		b.produce(t, b.event(int32(i%2), uuid.New(), strconv.Itoa(i)))
	}
	stop := b.start(t, b.consumer(t))
	b.effects(t, 100)
	stop()
	if !strings.Contains(b.logged(), "offsets not committed") {
		t.Error("the offsets were committed")
	}
	b.start(t, b.consumer(t))
	testenv.Eventually(t, waitLimit, func() error { return want(nil, 100, b.outcome(inbox.Duplicate)) })
	b.effects(t, 100)
}

func TestCommittedOffsetIsNotRepeated(t *testing.T) {
	t.Parallel()
	b := newBench(t, testenv.Brokers(t), 2)
	b.produce(t, b.event(0, uuid.New(), "a"), b.event(1, uuid.New(), "b"))
	stop := b.start(t, b.consumer(t))
	b.effects(t, 2)
	stop()
	b.produce(t, b.event(0, uuid.New(), "c"))
	b.start(t, b.consumer(t))
	b.effects(t, 3)
	if n := b.outcome(inbox.Duplicate); n != 0 {
		t.Errorf("%d delivered again", n)
	}
}

// A topic has the events of all tenants: the extension attribute tells which.
func TestHandlerSeesExtensionAttributes(t *testing.T) {
	t.Parallel()
	b := newBench(t, testenv.Brokers(t), 1)
	seen := make(chan inbox.Event, 1)
	c := b.consumer(t)
	c.Handle = func(_ context.Context, _ pgx.Tx, events []inbox.Event) error {
		seen <- events[0]
		return nil
	}
	b.start(t, c)
	b.produce(t, b.event(0, uuid.New(), "a", "ce_tenantid", "acme", "traceparent", "00-1"))

	e := <-seen
	if diff := cmp.Diff(map[string]string{"tenantid": "acme"}, e.Attributes); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"content-type": "application/json", "traceparent": "00-1"}, e.Headers); diff != "" {
		t.Error(diff)
	}
}

func TestHandlerPanicIsAFailure(t *testing.T) {
	t.Parallel()
	b := newBench(t, testenv.Brokers(t), 2)
	c := b.consumer(t)
	c.Handle = func(ctx context.Context, tx pgx.Tx, events []inbox.Event) error {
		if events[0].Subject == "panic" {
			panic("at the disco")
		}
		return count(ctx, tx, events)
	}
	b.produce(t, b.event(0, uuid.New(), "panic"), b.event(1, uuid.New(), "beside"))
	b.start(t, c)
	b.effects(t, 1)
	testenv.Eventually(t, waitLimit, func() error {
		if !strings.Contains(b.logged(), "panic: at the disco") || b.outcome(inbox.Parked) == 0 {
			return errors.New("not logged and parked")
		}
		return nil
	})
}

func TestDatabaseOutageIsWaitedFor(t *testing.T) {
	t.Parallel()
	b := newBench(t, testenv.Brokers(t), 2)
	b.start(t, b.consumer(t))
	b.produce(t, b.event(0, uuid.New(), "before"))
	b.effects(t, 1)

	elsewhere, err := pgx.Connect(t.Context(), strings.Replace(b.db.URL, "/"+b.db.Name, "/postgres", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close(t.Context())
	execute := func(sql string) {
		t.Helper()
		if _, err := elsewhere.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	execute(`ALTER DATABASE ` + b.db.Name + ` ALLOW_CONNECTIONS false`)
	execute(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '` + b.db.Name + `'`)
	b.produce(t, b.event(0, uuid.New(), "meanwhile"), b.event(1, uuid.New(), "beside"))
	testenv.Eventually(t, waitLimit, func() error {
		if strings.Count(b.logged(), "database away") < 3 {
			return errors.New("not noticed three times")
		}
		return nil
	})
	if members := b.members(t); len(members) != 1 {
		t.Errorf("members: %v", members)
	}
	execute(`ALTER DATABASE ` + b.db.Name + ` ALLOW_CONNECTIONS true`)
	b.effects(t, 3)
	if n := b.outcome(inbox.Failed) + b.outcome(inbox.Parked); n != 0 {
		t.Errorf("%d events were blamed for the outage", n)
	}
}

func TestRebalancesTakeEffectOnce(t *testing.T) {
	t.Parallel()
	const events, partitions = 3000, 6
	b := newBench(t, testenv.Brokers(t), partitions)
	b.start(t, b.consumer(t))
	produced := make(chan struct{}, events)
	go func() {
		defer close(produced)
		for i := 0; i < events; i += 20 {
			var rs []*kgo.Record
			for j := i; j < i+20; j++ {
				rs = append(rs, b.event(int32(j%partitions), uuid.New(), strconv.Itoa(j)))
			}
			if err := b.client.ProduceSync(context.Background(), rs...).FirstErr(); err != nil {
				t.Error(err)
				return
			}
			produced <- struct{}{}
		}
	}()
	members := func(n int) {
		t.Helper()
		testenv.Eventually(t, waitLimit, func() error {
			group, err := kadm.NewClient(b.client).DescribeGroups(t.Context(), b.topic)
			if err == nil && group[b.topic].State != "Stable" {
				return errors.New(group[b.topic].State)
			}
			return want(err, n, len(group[b.topic].Members))
		})
	}
	for range 3 {
		members(1)
		stop := b.start(t, b.consumer(t))
		members(2)
		<-produced
		stop()
	}
	for range produced { // until all is
	}
	b.effects(t, events)
	var ordered bool
	// Each partition has its subjects in the order of their offsets, whoever did them.
	err := b.owner.QueryRow(t.Context(), `SELECT bool_and(last = subject::int / $1) FROM effects`, partitions).Scan(&ordered)
	if err != nil || !ordered {
		t.Errorf("offsets are not what was produced: %v", err)
	}
}

func TestMissingTopicIsNamed(t *testing.T) {
	t.Parallel()
	b := newBench(t, testenv.Brokers(t), 0)
	c := b.consumer(t)
	if c.Ready(t.Context()) == nil {
		t.Error("ready before it runs")
	}
	b.start(t, c)
	testenv.Eventually(t, waitLimit, func() error {
		if err := c.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), b.topic) {
			return fmt.Errorf("ready: %w", err)
		}
		if !strings.Contains(b.logged(), "do not exist: "+b.topic) {
			return errors.New("not in the log")
		}
		return nil
	})
	b.makeTopic(t, 1)
	b.produce(t, b.event(0, uuid.New(), "at last"))
	b.effects(t, 1)
	testenv.Eventually(t, waitLimit, func() error { return c.Ready(t.Context()) })
}

func TestAbortedTransactionsNeverHappened(t *testing.T) {
	t.Parallel()
	b := newBench(t, testenv.Brokers(t), 1)
	producer, err := kgo.NewClient(kgo.SeedBrokers(b.brokers...), kgo.TransactionalID(b.topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	for i := range 6 {
		if err := producer.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := producer.ProduceSync(t.Context(), b.event(0, uuid.New(), strconv.Itoa(i))).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := producer.EndTransaction(t.Context(), kgo.TransactionEndTry(i%2 == 0)); err != nil {
			t.Fatal(err)
		}
	}
	b.start(t, b.consumer(t))
	b.effects(t, 3)
	testenv.Eventually(t, waitLimit, func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		return want(nil, 0, int(b.lag))
	})
}

// members returns the members of the group.
func (b *bench) members(t *testing.T) []kadm.DescribedGroupMember {
	t.Helper()
	groups, err := kadm.NewClient(b.client).DescribeGroups(t.Context(), b.topic)
	if err != nil {
		t.Fatal(err)
	}
	return groups[b.topic].Members
}

// poolWith is a consumer's pool with another configuration.
func (b *bench) poolWith(t *testing.T, change func(*pgx.ConnConfig)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(b.db.URLAs("consumer"))
	if err != nil {
		t.Fatal(err)
	}
	change(config.ConnConfig)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}
