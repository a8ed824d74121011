package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/testenv"
)

// desk is a bench whose handler writes down what it applied, in order, and refuses poison until it is cured.
type desk struct {
	*bench
	pool  *pgxpool.Pool
	cured atomic.Bool
}

func newDesk(t *testing.T, brokers []string, partitions int32) *desk {
	t.Helper()
	d := &desk{bench: newBench(t, brokers, partitions)}
	d.pool = d.db.Pool(t, "consumer")
	_, err := d.owner.Exec(t.Context(), `CREATE TABLE applied (i bigint GENERATED ALWAYS AS IDENTITY, event_id uuid NOT NULL, key text NOT NULL, sequence bigint NOT NULL);
		GRANT ALL ON applied TO consumer`)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *desk) handle(ctx context.Context, tx pgx.Tx, events []inbox.Event) error {
	for _, e := range events {
		if strings.HasPrefix(e.Type, "thing.poisoned") && !d.cured.Load() {
			return errors.New("it is poisoned")
		}
		if _, err := tx.Exec(ctx, `INSERT INTO applied (event_id, key, sequence) VALUES ($1, $2, $3)`, e.ID, string(e.Key), e.Sequence); err != nil {
			return err
		}
	}
	return nil
}

func (d *desk) consumer(t *testing.T) *inbox.Consumer {
	c := d.bench.consumer(t)
	c.Handle = d.handle
	return c
}

// numbered is an event of an aggregate, with its number.
func (d *desk) numbered(partition int32, key string, sequence int, headers ...string) *kgo.Record {
	return d.event(partition, uuid.New(), key, append(headers, "ce_sequence", strconv.Itoa(sequence))...)
}

var poisoned = []string{"ce_type", "thing.poisoned"}

// wantApplied waits until the events of these aggregates have taken effect, in this order within each.
func (d *desk) wantApplied(t *testing.T, want map[string][]int64) {
	t.Helper()
	testenv.Eventually(t, waitLimit, func() error {
		got := map[string][]int64{}
		rows, err := d.owner.Query(t.Context(), `SELECT key, sequence FROM applied ORDER BY i`)
		if err != nil {
			return err
		}
		var key string
		var sequence int64
		_, err = pgx.ForEachRow(rows, []any{&key, &sequence}, func() error {
			got[key] = append(got[key], sequence)
			return nil
		})
		if diff := cmp.Diff(want, got); err == nil && diff != "" {
			err = errors.New(diff)
		}
		return err
	})
}

// letters waits until so many dead letters wait for a decision.
func (d *desk) letters(t *testing.T, n int) (found []inbox.DeadLetter) {
	t.Helper()
	testenv.Eventually(t, waitLimit, func() (err error) {
		found, err = inbox.DeadLetters(t.Context(), d.pool, "test", false)
		return want(err, n, len(found))
	})
	return found
}

// outcomes waits until so many events had this outcome.
func (d *desk) atLeast(t *testing.T, outcome string, n int) {
	t.Helper()
	testenv.Eventually(t, waitLimit, func() error {
		if got := d.outcome(outcome); got < n {
			return fmt.Errorf("%d %s, want %d", got, outcome, n)
		}
		return nil
	})
}

func TestPoisonParksItsAggregateOnly(t *testing.T) {
	t.Parallel()
	d := newDesk(t, testenv.Brokers(t), 2)
	poison := d.numbered(0, "bad", 2, poisoned...)
	poison.Headers = append(poison.Headers, kgo.RecordHeader{Key: "raw\xff", Value: []byte{0, 0xff}}, kgo.RecordHeader{Key: "none"})
	poison.Value = []byte("{\x00\xff")
	d.produce(t, d.numbered(0, "bad", 1), d.numbered(0, "good", 1), poison, d.numbered(0, "bad", 3), d.numbered(0, "good", 2), d.numbered(1, "beside", 1))
	d.start(t, d.consumer(t))
	d.wantApplied(t, map[string][]int64{"bad": {1}, "good": {1, 2}, "beside": {1}})

	l := d.letters(t, 1)[0]
	if l.Topic != d.topic || l.Partition != 0 || l.Offset != 2 || l.Key != "bad" || l.Sequence != 2 || l.Tries != 3 || l.Waiting != 2 || !strings.Contains(l.Reason, "it is poisoned") {
		t.Errorf("letter: %+v", l)
	}
	if n := len(l.Headers); n != 2*len(poison.Headers) || l.Headers[n-4] != "raw\xff" || l.Headers[n-3] != "\x00\xff" || l.Headers[n-1] != "" {
		t.Errorf("headers: %q", l.Headers)
	}
	if found, err := inbox.FindDeadLetter(t.Context(), d.pool, "test", l.ID); err != nil || string(found.Payload) != "{\x00\xff" {
		t.Errorf("payload %q, %v", found.Payload, err)
	}
	if !strings.Contains(d.logged(), "it is poisoned") {
		t.Error("it is not named in the log")
	}
	d.atLeast(t, inbox.Parked, 2)
	testenv.Eventually(t, waitLimit, func() error { // letters were looked for, and what waits still waits
		d.mu.Lock()
		defer d.mu.Unlock()
		if n := d.passes[[2]int64{1, 1}]; n < 3 {
			return fmt.Errorf("OnLetters: %v", d.passes)
		}
		return nil
	})
	d.wantApplied(t, map[string][]int64{"bad": {1}, "good": {1, 2}, "beside": {1}})
	d.letters(t, 1)
	testenv.Eventually(t, waitLimit, func() error { // its partition flows on
		d.mu.Lock()
		defer d.mu.Unlock()
		return want(nil, 0, int(d.lag))
	})
}

func TestDecidedLettersAreAppliedInOrder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cured  bool
		decide func(context.Context, *pgxpool.Pool, int64) error
		want   []int64
		left   int
	}{
		"retry":       {true, retry, []int64{1, 2, 3, 4, 5, 6, 7}, 0},
		"retry fails": {false, retry, []int64{1}, 1},
		"skip": {false, func(ctx context.Context, db *pgxpool.Pool, id int64) error {
			return inbox.SkipDeadLetter(ctx, db, "test", id, "booked by hand")
		}, []int64{1, 3, 4, 5, 6, 7}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, testenv.Brokers(t), 1)
			d.produce(t, d.numbered(0, "a", 1), d.numbered(0, "a", 2, poisoned...), d.numbered(0, "a", 3), d.numbered(0, "a", 4))
			d.start(t, d.consumer(t))
			l := d.letters(t, 1)[0]
			d.atLeast(t, inbox.Parked, 3)
			d.produce(t, d.numbered(0, "a", 5), d.numbered(0, "a", 6)) // in one batch
			d.atLeast(t, inbox.Parked, 5)
			d.cured.Store(c.cured)
			if err := c.decide(t.Context(), d.pool, l.ID); err != nil {
				t.Fatal(err)
			}
			d.produce(t, d.numbered(0, "a", 7))
			d.wantApplied(t, map[string][]int64{"a": c.want})
			testenv.Eventually(t, waitLimit, func() error {
				found, err := inbox.FindDeadLetter(t.Context(), d.pool, "test", l.ID)
				if err == nil && (found.State == "retry" || name == "retry fails" && found.Tries != 4) {
					err = fmt.Errorf("%+v", found)
				}
				return err
			})
			d.letters(t, c.left)
			if err := retry(t.Context(), d.pool, l.ID); c.left == 0 && !errors.Is(err, inbox.ErrNoDeadLetter) {
				t.Errorf("decided on twice: %v", err)
			}
		})
	}
}

func retry(ctx context.Context, db *pgxpool.Pool, id int64) error {
	return inbox.RetryDeadLetter(ctx, db, "test", id)
}

// Delivered again, at other offsets, while they are letters and when they have been decided on.
func TestRedeliveredLettersAreTheSameLetters(t *testing.T) {
	t.Parallel()
	d := newDesk(t, testenv.Brokers(t), 1)
	poison, behind := d.numbered(0, "a", 1, poisoned...), d.numbered(0, "a", 2)
	again := func(rs ...*kgo.Record) {
		t.Helper()
		for _, r := range rs {
			clone := *r
			d.produce(t, &clone)
		}
	}
	again(poison, behind)
	d.start(t, d.consumer(t))
	l := d.letters(t, 1)[0]
	again(poison, behind)
	d.atLeast(t, inbox.Duplicate, 2)
	if l := d.letters(t, 1)[0]; l.Waiting != 2 {
		t.Errorf("%d wait", l.Waiting)
	}

	if err := inbox.SkipDeadLetter(t.Context(), d.pool, "test", l.ID, "gone"); err != nil {
		t.Fatal(err)
	}
	d.wantApplied(t, map[string][]int64{"a": {2}})
	d.cured.Store(true)
	again(poison, behind)
	d.atLeast(t, inbox.Duplicate, 4)
	d.wantApplied(t, map[string][]int64{"a": {2}})
}

// The runbook lets old letters be deleted: then the inbox alone knows them.
func TestRetriedLetterIsInTheInbox(t *testing.T) {
	t.Parallel()
	d := newDesk(t, testenv.Brokers(t), 1)
	poison := d.numbered(0, "a", 1, poisoned...)
	again := *poison
	d.start(t, d.consumer(t))
	d.produce(t, poison)
	l := d.letters(t, 1)[0]
	d.cured.Store(true)
	if err := retry(t.Context(), d.pool, l.ID); err != nil {
		t.Fatal(err)
	}
	d.wantApplied(t, map[string][]int64{"a": {1}})
	if _, err := d.owner.Exec(t.Context(), `DELETE FROM inbox_dead_letters WHERE resolved_at IS NOT NULL`); err != nil {
		t.Fatal(err)
	}
	d.produce(t, &again)
	d.atLeast(t, inbox.Duplicate, 1)
	d.wantApplied(t, map[string][]int64{"a": {1}})
}

func TestRecordsThatAreNoEventsAreParked(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	cases := []struct{ reason, header, value string }{
		{`header ce_specversion is "0.3"`, "ce_specversion", "0.3"},
		{`header ce_specversion is ""`, "ce_specversion", ""},
		{`header ce_id is ""`, "ce_id", ""},
		{`header ce_id is "17"`, "ce_id", "17"},
		{`header ce_id is "{` + id.String(), "ce_id", "{" + id.String() + "}"},
		{`header ce_id is "00000000-`, "ce_id", uuid.Nil.String()},
		{"no header ce_type", "ce_type", ""},
		{"no header ce_source", "ce_source", ""},
		{"header ce_time is", "ce_time", "yesterday"},
		{"it has no ce_time", "ce_time", ""},
		{"header ce_sequence is", "ce_sequence", "-1"},
		{"header ce_sequence is", "ce_sequence", "one"},
		{"header ce_type is there twice", "", ""},
	}
	d := newDesk(t, testenv.Brokers(t), int32(len(cases)))
	applied := map[string][]int64{}
	for i, c := range cases {
		bad := fmt.Sprint("bad ", i)
		r := d.event(int32(i), id, bad, c.header, c.value)
		if c.header == "" {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: "ce_type", Value: []byte("thing.other")})
		}
		if c.header == "ce_time" && c.value == "" {
			r = d.event(int32(i), uuid.New(), bad, "ce_time", "") // it has an id of its own
		}
		d.produce(t, d.numbered(int32(i), fmt.Sprint("before ", i), 1), r, d.numbered(int32(i), bad, 2), d.numbered(int32(i), fmt.Sprint("beside ", i), 1))
		applied[fmt.Sprint("before ", i)], applied[fmt.Sprint("beside ", i)] = []int64{1}, []int64{1}
	}
	d.start(t, d.consumer(t))
	d.wantApplied(t, applied)
	letters := d.letters(t, len(cases))
	for _, l := range letters {
		if c := cases[l.Partition]; l.Offset != 1 || !strings.Contains(l.Reason, c.reason) || l.Tries != 1 || l.Waiting != 2 {
			t.Errorf("want %s, got %+v", c.reason, l)
		}
	}
	if n := d.outcome(inbox.Failed); n != 0 {
		t.Errorf("%d were tried again", n)
	}

	// The event itself, sent in order after all, is not taken for the letter that had its id.
	d.produce(t, d.event(0, id, "the event itself"))
	applied["the event itself"] = []int64{1}
	d.wantApplied(t, applied)

	// One that is still no event stays a letter; the one without a time takes effect because an operator says so.
	for _, l := range letters {
		if err := retry(t.Context(), d.pool, l.ID); err != nil {
			t.Fatal(err)
		}
	}
	applied["bad 9"] = []int64{1, 2}
	d.wantApplied(t, applied)
	for _, l := range d.letters(t, len(cases)-1) {
		if l.State == "retry" {
			testenv.Eventually(t, waitLimit, func() error {
				found, err := inbox.FindDeadLetter(t.Context(), d.pool, "test", l.ID)
				if err == nil && (found.State != "parked" || found.Tries != 2) {
					err = fmt.Errorf("%+v", found)
				}
				return err
			})
		}
	}
}

func TestBrokenHandlerStopsItsPartition(t *testing.T) {
	t.Parallel()
	const most = 3
	d := newDesk(t, testenv.Brokers(t), 1)
	applied := map[string][]int64{}
	for i := range 10 {
		d.produce(t, d.numbered(0, strconv.Itoa(i), 1, poisoned...))
		if i >= most {
			applied[strconv.Itoa(i)] = []int64{1}
		}
	}
	c := d.consumer(t)
	c.MaxDeadLetters, c.Tries = most, 2
	d.start(t, c)
	d.letters(t, most)
	d.atLeast(t, inbox.Failed, most+5) // it goes on trying
	if n := len(d.letters(t, most)); n != most || !strings.Contains(d.logged(), "too many dead letters wait for a decision: 3") {
		t.Errorf("%d letters, log:\n%s", n, d.logged())
	}

	// A newer program: all the others take effect without an operator.
	d.cured.Store(true)
	d.wantApplied(t, applied)
	d.letters(t, most)
}

func TestDuplicateAloneHasNoEffect(t *testing.T) {
	t.Parallel()
	d := newDesk(t, testenv.Brokers(t), 1)
	first := d.numbered(0, "a", 1)
	again := *first
	d.start(t, d.consumer(t))
	d.produce(t, first)
	d.atLeast(t, inbox.Processed, 1)
	d.produce(t, &again)
	d.atLeast(t, inbox.Duplicate, 1)
	d.wantApplied(t, map[string][]int64{"a": {1}})
}

// commits lets a test refuse offset commits, and see who commits what.
type commits struct {
	refuse atomic.Bool
	mu     sync.Mutex
	made   map[int32]map[string]bool // partition → members
}

func watchCommits(cluster *kfake.Cluster) *commits {
	c := &commits{made: map[int32]map[string]bool{}}
	cluster.ControlKey(kmsg.OffsetCommit.Int16(), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		r := request.(*kmsg.OffsetCommitRequest)
		if !c.refuse.Load() {
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, topic := range r.Topics {
				for _, p := range topic.Partitions {
					if c.made[p.Partition] == nil {
						c.made[p.Partition] = map[string]bool{}
					}
					c.made[p.Partition][r.MemberID] = true
				}
			}
			return nil, nil, false
		}
		answer := request.ResponseKind().(*kmsg.OffsetCommitResponse)
		for _, topic := range r.Topics {
			at := kmsg.NewOffsetCommitResponseTopic()
			at.Topic, at.TopicID = topic.Topic, topic.TopicID
			for _, p := range topic.Partitions {
				refused := kmsg.NewOffsetCommitResponseTopicPartition()
				refused.Partition, refused.ErrorCode = p.Partition, kerr.UnknownServerError.Code
				at.Partitions = append(at.Partitions, refused)
			}
			answer.Topics = append(answer.Topics, at)
		}
		return answer, nil, true
	})
	return c
}

func TestLostPartitionsAreNotCommitted(t *testing.T) {
	t.Parallel()
	cluster := kfake.MustCluster(kfake.NumBrokers(1))
	t.Cleanup(cluster.Close)
	commits := watchCommits(cluster)
	commits.refuse.Store(true)
	d := newDesk(t, cluster.ListenAddrs(), 2)
	d.produce(t, d.numbered(0, "a", 1), d.numbered(1, "b", 1))
	d.start(t, d.consumer(t))
	d.wantApplied(t, map[string][]int64{"a": {1}, "b": {1}})

	// The second member gets one of the partitions, of which the first has not committed what it did.
	d.start(t, d.consumer(t))
	testenv.Eventually(t, waitLimit, func() error {
		groups, err := kadm.NewClient(d.client).DescribeGroups(t.Context(), d.topic)
		if err != nil {
			return err
		}
		busy := 0
		for _, m := range groups[d.topic].Members {
			if assigned, ok := m.Assigned.AsConsumer(); ok && len(assigned.Topics) > 0 {
				busy++
			}
		}
		if state := groups[d.topic].State; state != "Stable" {
			return errors.New(state)
		}
		return want(nil, 2, busy)
	})
	d.atLeast(t, inbox.Duplicate, 1)
	commits.refuse.Store(false)
	testenv.Eventually(t, waitLimit, func() error {
		commits.mu.Lock()
		defer commits.mu.Unlock()
		return want(nil, 2, len(commits.made))
	})
	d.produce(t, d.numbered(0, "a", 2), d.numbered(1, "b", 2)) // and a round in which all is committed that ever will be
	d.wantApplied(t, map[string][]int64{"a": {1, 2}, "b": {1, 2}})
	commits.mu.Lock()
	defer commits.mu.Unlock()
	for p, members := range commits.made {
		if len(members) != 1 {
			t.Errorf("partition %d was committed by %d members", p, len(members))
		}
	}
}

// Killed between the letters' commit and their offsets.
func TestLettersComeBeforeTheirOffsets(t *testing.T) {
	t.Parallel()
	cluster := kfake.MustCluster(kfake.NumBrokers(1))
	t.Cleanup(cluster.Close)
	commits := watchCommits(cluster)
	commits.refuse.Store(true)
	d := newDesk(t, cluster.ListenAddrs(), 1)
	d.produce(t, d.numbered(0, "a", 1, poisoned...), d.numbered(0, "a", 2), d.event(0, uuid.Nil, "no event"), d.numbered(0, "b", 1))
	stop := d.start(t, d.consumer(t))
	d.wantApplied(t, map[string][]int64{"b": {1}})
	stop()

	d.start(t, d.consumer(t))
	d.atLeast(t, inbox.Duplicate, 3)
	commits.refuse.Store(false)
	testenv.Eventually(t, waitLimit, func() error {
		commits.mu.Lock()
		defer commits.mu.Unlock()
		return want(nil, 1, len(commits.made))
	})
	d.wantApplied(t, map[string][]int64{"b": {1}})
	if ls := d.letters(t, 2); ls[0].Waiting != 2 || ls[1].Waiting != 1 {
		t.Errorf("letters: %+v", ls)
	}
}

func TestEventThatTakesTooLongIsParked(t *testing.T) {
	t.Parallel()
	for limit, slow := range map[string]func(context.Context, pgx.Tx) error{
		"statement_timeout": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SELECT pg_sleep(60)`)
			return err
		},
		"idle_in_transaction_session_timeout": func(ctx context.Context, tx pgx.Tx) (err error) {
			for err == nil && ctx.Err() == nil { // the connection is lost
				select {
				case <-time.After(1500 * time.Millisecond):
					_, err = tx.Exec(ctx, `SELECT 1`)
				case <-ctx.Done():
				}
			}
			return err
		},
	} {
		t.Run(limit, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, testenv.Brokers(t), 1)
			c := d.consumer(t)
			c.DB = d.poolWith(t, func(c *pgx.ConnConfig) { c.RuntimeParams[limit] = "1000" })
			c.Handle = func(ctx context.Context, tx pgx.Tx, events []inbox.Event) error {
				for _, e := range events {
					if string(e.Key) == "slow" {
						return slow(ctx, tx)
					}
				}
				return d.handle(ctx, tx, events)
			}
			d.produce(t, d.numbered(0, "slow", 1), d.numbered(0, "beside", 1))
			d.start(t, c)
			d.wantApplied(t, map[string][]int64{"beside": {1}})
			if l := d.letters(t, 1)[0]; l.Tries != 2*c.Tries {
				t.Errorf("parked after %d tries, want %d", l.Tries, 2*c.Tries)
			}
		})
	}
}
