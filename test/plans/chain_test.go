package plans

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/statements"
	"github.com/oncepay/oncepay/internal/testenv"
)

const (
	relayBatch = 2500 // relay.Relay's default
	strays     = relayBatch * 3 / 2
	patience   = 20 * time.Second
)

// The next leader finds itself at the end of the outbox.
const catchUp = `
UPDATE outbox_cursors SET last_id = (SELECT max(id) FROM outbox_events), seen = pg_current_snapshot(), chunk_after = NULL, chunk_seen = NULL`

// publish has a relay read the outbox: a batch from where its cursor stands, which may be long ago; then, from the end of the outbox,
// what is new, more stragglers than a batch holds among it.
func (s *service) publish(t *testing.T) {
	t.Helper()
	db, owner := s.open(t, "relay", s.sent["relay"].trace), s.db.Pool(t, "")
	b := &broker{away: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		r := relay.Relay{DB: db, Open: b.open, Name: "main", Lease: time.Second, Log: slog.New(slog.DiscardHandler)}
		return r.Run(ctx)
	})

	s.appendEvents(t, "before", 1)
	s.wantSent(t, "relay", "moved_at = CASE batches") // it renews while the broker is away
	testenv.Eventually(t, patience, b.asked.atLeast(1))
	if _, err := owner.Exec(t.Context(), catchUp); err != nil {
		t.Fatal(err)
	}
	close(b.away)
	testenv.Eventually(t, patience, b.terms.atLeast(2))

	// A transaction that draws its ids first and commits last.
	late, err := owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = late.Rollback(context.WithoutCancel(t.Context())) }()
	if err := outbox.Append(t.Context(), late, events("late", strays)); err != nil {
		t.Fatal(err)
	}
	s.appendEvents(t, "early", 1)
	testenv.Eventually(t, patience, b.early.atLeast(1))
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, b.late.atLeast(strays))
	s.wantSent(t, "relay", "pg_visible_in_snapshot") // the stragglers in chunks; its text is no constant

	// An event that is refused, parked, decided on and sent.
	s.appendEvents(t, "refused", 1)
	var letters []relay.DeadLetter
	testenv.Eventually(t, patience, func() (err error) {
		if letters, err = relay.DeadLetters(t.Context(), db, "main", false); err == nil && len(letters) == 0 {
			err = errors.New("no dead letter")
		}
		return err
	})
	b.takes.Store(true)
	if _, err := relay.FindDeadLetter(t.Context(), db, "main", letters[0].ID); err != nil {
		t.Fatal(err)
	}
	if err := relay.SkipDeadLetter(t.Context(), db, "main", -1, "there is none"); !errors.Is(err, relay.ErrNoDeadLetter) {
		t.Fatal(err)
	}
	if err := relay.RetryDeadLetter(t.Context(), db, "main", letters[0].ID); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, func() error {
		left, err := relay.DeadLetters(t.Context(), db, "main", false)
		if err == nil && len(left) > 0 {
			err = errors.New("it was not sent again")
		}
		return err
	})

	stop()
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	s.takeOver(t, db, b)
	if _, err := relay.MeasureBacklog(t.Context(), db, "main"); err != nil {
		t.Fatal(err)
	}
	if _, err := (&relay.Stalls{Relay: "main", Lease: time.Second}).Look(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	s.sendAgain(t, db)
	if _, err := new(relay.Snapshots).Oldest(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if _, err := new(relay.Writers).Oldest(t.Context(), db); err != nil {
		t.Fatal(err)
	}
}

// sendAgain counts what the relay has sent, from the beginning and from a time, and begins to send it.
func (s *service) sendAgain(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	r := relay.Resend{DB: db, Relay: "main"}
	if _, err := r.Span(t.Context(), relay.Ends{FromTime: time.Now()}); err != nil {
		t.Fatal(err)
	}
	span, err := r.Span(t.Context(), relay.Ends{FromOldest: true})
	if err != nil {
		t.Fatal(err)
	}
	span.UntilID = span.FromID + 3*relayBatch
	if _, err := r.Count(t.Context(), span, nil); err != nil {
		t.Fatal(err)
	}

	const rate = 10 * relayBatch
	_, _, err = r.Send(t.Context(), span, rate, func(context.Context, []relay.Message) error {
		return nil
	}, func(relay.Tally, int64) {})
	if err != nil {
		t.Fatal(err)
	}
}

// takeOver has a relay look at the lease of one that vanished; and another one at what the broker has of the first, whose moves were lost.
func (s *service) takeOver(t *testing.T, db *pgxpool.Pool, b *broker) {
	t.Helper()
	owner := s.db.Pool(t, "")
	if _, err := owner.Exec(t.Context(), `DROP TABLE IF EXISTS before; CREATE TABLE before AS SELECT batches, last_id, seen FROM outbox_cursors`); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := owner.Exec(t.Context(), `UPDATE outbox_cursors c SET holder = 'gone', lease_until = clock_timestamp(),
			batches = b.batches, last_id = b.last_id, seen = b.seen FROM before b`)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		done := make(chan error, 1)
		go func() {
			r := relay.Relay{DB: db, Open: b.open, Name: "main", Lease: time.Second, Log: slog.New(slog.DiscardHandler)}
			done <- r.Run(ctx)
		}()
		sent := b.early.Load()
		s.appendEvents(t, "early", 1)
		testenv.Eventually(t, patience, b.early.atLeast(sent+1))
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		b.kept = b.next
	}
}

func (s *service) appendEvents(t *testing.T, kind string, n int) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), s.db.Pool(t, ""), func(tx pgx.Tx) error { return outbox.Append(t.Context(), tx, events(kind, n)) })
	if err != nil {
		t.Fatal(err)
	}
}

func events(kind string, n int) []outbox.Event {
	es := make([]outbox.Event, n)
	for i := range es {
		es[i] = outbox.Event{ID: uuid.New(), AggregateType: "things", AggregateID: fmt.Sprint(i), AggregateVersion: 1, Type: kind, Payload: []byte("{}")}
	}
	return es
}

// broker is away for the relay's first term as leader, and takes everything afterwards.
type broker struct {
	away        chan struct{} // until it is closed
	terms       counter
	asked       counter     // batches
	early, late counter     // events
	takes       atomic.Bool // what it refused at first
	kept, next  *relay.Progress
}

func (b *broker) open(context.Context, string, string) (relay.Publisher, *relay.Progress, error) {
	b.terms.Add(1)
	return b, b.kept, nil
}

func (b *broker) Publish(ctx context.Context, batch []relay.Message, next relay.Progress) error {
	if len(batch) == 0 { // the relay is idle
		return nil
	}
	b.asked.Add(1)
	select {
	case <-b.away:
	case <-ctx.Done():
		return ctx.Err()
	}
	if b.terms.Load() == 1 {
		return errors.New("away")
	}
	for i, m := range batch {
		if m.Type == "refused" && !b.takes.Load() {
			return &relay.BatchError{Refused: true, Index: i, Unsent: true, Err: errors.New("too large")}
		}
	}
	for _, m := range batch {
		switch m.Type {
		case "early":
			b.early.Add(1)
		case "late":
			b.late.Add(1)
		}
	}
	b.next = &next
	return nil
}

func (b *broker) Close() {}

type counter struct{ atomic.Int64 }

func (c *counter) atLeast(want int64) func() error {
	return func() error {
		if n := c.Load(); n < want {
			return fmt.Errorf("%d of %d", n, want)
		}
		return nil
	}
}

// consume has a consumer handle a hundred events, and once more: the second time none takes effect. One event behind them cannot be
// processed: it is retried, fails again and is skipped, and what waits behind it is processed.
func (s *service) consume(t *testing.T) {
	t.Helper()
	pool, brokers, topic := s.open(t, "consumer", s.sent["consumer"].trace), testenv.Brokers(t), testenv.TopicPrefix(t)+"payments"
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.AllowAutoTopicCreation())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 1, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	var rs []*kgo.Record
	for range 100 {
		rs = append(rs, paymentRecord(topic, uuid.New(), "payment.completed", 1))
	}
	again := make([]*kgo.Record, len(rs))
	for i, r := range rs {
		clone := *r
		again[i] = &clone
	}
	poisoned := uuid.New()
	more := []*kgo.Record{paymentRecord(topic, poisoned, "payment.unheard-of", 1), paymentRecord(topic, poisoned, "payment.completed", 2)}

	var failed, processed, parked counter
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() {
		c := inbox.Consumer{
			DB: pool, Name: statements.Consumer, Handle: statements.Handle, Tries: 1, Log: slog.New(slog.DiscardHandler),
			Kafka: inbox.Kafka{Brokers: brokers, Group: topic, Topics: []string{topic}},
			OnEvent: func(outcome string, _ time.Duration) {
				map[string]*counter{inbox.Failed: &failed, inbox.Processed: &processed, inbox.Duplicate: new(counter), inbox.Parked: &parked}[outcome].Add(1)
			},
		}
		done <- c.Run(ctx)
	}()
	for _, batch := range [][]*kgo.Record{rs, again, more} {
		if err := client.ProduceSync(t.Context(), batch...).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, patience, parked.atLeast(2))

	letters, err := inbox.DeadLetters(t.Context(), pool, statements.Consumer, false)
	if err != nil || len(letters) != 1 {
		t.Fatalf("dead letters %+v, %v", letters, err)
	}
	id := letters[0].ID
	if _, err := inbox.FindDeadLetter(t.Context(), pool, statements.Consumer, id); err != nil {
		t.Fatal(err)
	}
	if err := inbox.RetryDeadLetter(t.Context(), pool, statements.Consumer, id); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, failed.atLeast(1))
	testenv.Eventually(t, patience, func() error { return inbox.SkipDeadLetter(t.Context(), pool, statements.Consumer, id, "unheard of") })
	testenv.Eventually(t, patience, processed.atLeast(101))
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// paymentRecord is a record as the relay makes it.
func paymentRecord(topic string, id uuid.UUID, kind string, sequence int) *kgo.Record {
	at := time.Now().UTC().Format(time.RFC3339Nano)
	value := fmt.Sprintf(`{"id":%q,"status":"completed","amount_minor":1,"currency":"USD","source_account":%q,"destination_account":%q,"processed_at":%q}`,
		id, uuid.New(), uuid.New(), at)
	r := &kgo.Record{Topic: topic, Key: []byte(id.String()), Value: []byte(value)}
	for _, h := range [][2]string{
		{"ce_specversion", "1.0"}, {"ce_id", uuid.NewString()}, {"ce_source", "/test"}, {"ce_type", kind}, {"ce_subject", id.String()},
		{"ce_time", at}, {"ce_sequence", fmt.Sprint(sequence)},
	} {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h[0], Value: []byte(h[1])})
	}
	return r
}

// wantSent waits until a statement with that text in it was sent.
func (s *service) wantSent(t *testing.T, role, text string) {
	t.Helper()
	testenv.Eventually(t, patience, func() error { return s.sent[role].has(text) })
}
