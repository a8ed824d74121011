package relay_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/testenv"
)

// soon is the longest that a condition is waited for. It is long because it is only waited out when a test fails.
const soon = time.Minute

// database is a test's own database, with a table of aggregates whose rows are locked as the promise asks.
type database struct {
	*testenv.DB
	owner *pgxpool.Pool
	relay *pgxpool.Pool // with the rights of a relay, and no more
}

func newDatabase(t testing.TB) database {
	t.Helper()
	db := testenv.Database(t)
	d := database{DB: db, owner: db.Pool(t, ""), relay: db.Pool(t, "relay")}
	d.exec(t, `CREATE TABLE aggregates (id text PRIMARY KEY, version bigint NOT NULL DEFAULT 0)`)
	return d
}

func (d database) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := d.owner.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func ask[T any](t testing.TB, d database, sql string, args ...any) (answer T) {
	t.Helper()
	if err := d.owner.QueryRow(t.Context(), sql, args...).Scan(&answer); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return answer
}

// cursorID returns the id of the cursor's row, which is in the names that Kafka knows it by.
func (d database) cursorID(t testing.TB) string {
	t.Helper()
	return ask[string](t, d, `SELECT cursor_id::text FROM outbox_cursors WHERE relay = 'main'`)
}

// begin opens a transaction on a connection of its own. It is rolled back when the test ends.
func (d database) begin(t testing.TB) pgx.Tx {
	t.Helper()
	tx, err := d.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// change bumps the aggregate's version, which locks its row, and appends the event that tells of it.
func change(ctx context.Context, tx pgx.Tx, aggregate string) (outbox.Event, error) {
	e := outbox.Event{ID: uuid.Must(uuid.NewV7()), AggregateType: "things", AggregateID: aggregate, Type: "thing.changed", Payload: []byte(`{}`)}
	err := tx.QueryRow(ctx, `INSERT INTO aggregates AS a (id, version) VALUES ($1, 1)
		ON CONFLICT (id) DO UPDATE SET version = a.version + 1 RETURNING version`, aggregate).Scan(&e.AggregateVersion)
	if err != nil {
		return e, err
	}
	return e, outbox.Append(ctx, tx, []outbox.Event{e})
}

// changeAll changes each aggregate once, in tx, and returns the events' ids.
func changeAll(t testing.TB, tx pgx.Tx, aggregates ...string) (ids []uuid.UUID) {
	t.Helper()
	for _, a := range aggregates {
		e, err := change(t.Context(), tx, a)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, e.ID)
	}
	return ids
}

// commit changes each aggregate once, in one transaction, and returns the events' ids.
func (d database) commit(t testing.TB, aggregates ...string) []uuid.UUID {
	t.Helper()
	tx := d.begin(t)
	ids := changeAll(t, tx, aggregates...)
	commit(t, tx)
	return ids
}

func commit(t testing.TB, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// broker keeps what is published in memory.
type broker struct {
	// onPublish, when set, comes before a batch is kept. It returns how many messages of it are kept although it fails.
	onPublish func(ctx context.Context, batch []relay.Message) (kept int, err error)

	mu           sync.Mutex
	kept         *relay.Progress // what Open returns
	next         relay.Progress  // of the batch that was acknowledged last
	got          []relay.Message
	batches      []int // sizes of the batches that were acknowledged
	opened, open int   // publishers
}

func (b *broker) Open(context.Context, string, string) (relay.Publisher, *relay.Progress, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.opened++
	b.open++
	return &publisher{broker: b}, b.kept, nil
}

type publisher struct {
	broker *broker
	once   sync.Once
	broken bool
}

func (p *publisher) Publish(ctx context.Context, batch []relay.Message, next relay.Progress) (err error) {
	if len(batch) == 0 {
		return nil
	}
	if p.broken {
		return fmt.Errorf("used again after an error")
	}
	kept, b := len(batch), p.broker
	if b.onPublish != nil {
		if kept, err = b.onPublish(ctx, batch); err == nil {
			kept = len(batch)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	p.broken = err != nil
	for _, m := range batch[:kept] { // the bytes are the relay's again when Publish returns
		m.Payload, m.Headers = bytes.Clone(m.Payload), bytes.Clone(m.Headers)
		if m.AggregateVersion != nil {
			m.AggregateVersion = new(*m.AggregateVersion)
		}
		b.got = append(b.got, m)
	}
	if err == nil {
		b.batches, b.next = append(b.batches, len(batch)), next
	}
	return err
}

func (p *publisher) Close() {
	p.once.Do(func() {
		p.broker.mu.Lock()
		defer p.broker.mu.Unlock()
		p.broker.open--
	})
}

// received returns what was published so far, in order.
func (b *broker) received() []relay.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]relay.Message(nil), b.got...)
}

// progress returns what came with the batch that was acknowledged last.
func (b *broker) progress() *relay.Progress {
	b.mu.Lock()
	defer b.mu.Unlock()
	return new(b.next)
}

func (b *broker) ids() (ids []uuid.UUID) {
	for _, m := range b.received() {
		ids = append(ids, m.EventID)
	}
	return ids
}

// waitFor waits until n messages were published.
func (b *broker) waitFor(t testing.TB, n int) {
	t.Helper()
	testenv.Eventually(t, soon, func() error {
		if got := len(b.received()); got < n {
			return fmt.Errorf("%d messages of %d", got, n)
		}
		return nil
	})
}

// run is a relay that runs.
type run struct {
	leading chan bool  // what OnLeader was told
	errors  chan error // what OnError was told
	stop    func() error
}

// start runs a relay named "main" until stop is called, or the test ends.
func start(t testing.TB, db *pgxpool.Pool, open func(context.Context, string, string) (relay.Publisher, *relay.Progress, error), set func(*relay.Relay)) run {
	t.Helper()
	r := run{leading: make(chan bool, 1000), errors: make(chan error, 1000)}
	running := &relay.Relay{
		DB: db, Open: open, Name: "main", Lease: time.Minute, Log: slog.New(slog.DiscardHandler),
		OnLeader: func(leads bool) { r.leading <- leads },
		OnError:  func(err error) { r.errors <- err },
	}
	if set != nil {
		set(running)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- running.Run(ctx) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(soon):
			return fmt.Errorf("still running %s after its context ended", soon)
		}
	})
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return r
}

// next waits for a signal.
func next[T any](t testing.TB, signal <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-signal:
		return v
	case <-time.After(soon):
		t.Fatalf("waited %s for %s", soon, what)
		panic("not reached")
	}
}
