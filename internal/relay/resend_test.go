package relay_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/relay"
)

// fast is a rate at which no test waits.
const fast = 1_000_000

// resend is one of the relay that start runs, with the rights of a relay.
func (d database) resend() relay.Resend { return relay.Resend{DB: d.relay, Relay: "main"} }

func span(t testing.TB, r relay.Resend, ends relay.Ends) relay.Span {
	t.Helper()
	s, err := r.Span(t.Context(), ends)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// sink keeps what it is given. The memory of a message is used again, so it keeps copies.
type sink struct{ got []relay.Message }

func (s *sink) publish(_ context.Context, batch []relay.Message) error {
	for _, m := range batch {
		m.Payload, m.Headers = slices.Clone(m.Payload), slices.Clone(m.Headers)
		s.got = append(s.got, m)
	}
	return nil
}

func (s *sink) ids() (ids []int64) {
	for _, m := range s.got {
		ids = append(ids, m.ID)
	}
	return ids
}

func ignore(relay.Tally, int64) {}

// wantResent sends a span and compares the ids, and the count with that of a dry run.
func wantResent(t testing.TB, r relay.Resend, ends relay.Ends, want ...int64) relay.Tally {
	t.Helper()
	s := span(t, r, ends)
	counted, err := r.Count(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}

	var to sink
	sent, _, err := r.Send(t.Context(), s, fast, to.publish, ignore)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(counted, sent); diff != "" {
		t.Errorf("counted and sent (-counted +sent):\n%s", diff)
	}
	if diff := cmp.Diff(want, to.ids()); diff != "" {
		t.Errorf("%+v (-want +got):\n%s", ends, diff)
	}
	return sent
}

// What is sent again is what was sent, in its order. What committed late is the relay's.
func TestResendSendsWhatTheRelayHasSent(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	late := d.begin(t)
	d.commit(t, "a", "b")
	changeAll(t, late, "late")
	d.commit(t, "b", "a")
	r := start(t, d.relay, b.Open, nil)
	b.waitFor(t, 4)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	commit(t, late)
	d.commit(t, "a")

	s := span(t, d.resend(), relay.Ends{FromOldest: true})
	var to sink
	tally, _, err := d.resend().Send(t.Context(), s, fast, to.publish, ignore)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b.received(), to.got); diff != "" {
		t.Errorf("(-sent +sent again):\n%s", diff)
	}
	if tally.Unsent != 1 || tally.Events() != 4 {
		t.Errorf("%+v", tally)
	}
}

// committing commits a transaction when the first batch of statements begins.
type committing struct {
	t    *testing.T
	late pgx.Tx
	once sync.Once
}

func (c *committing) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.once.Do(func() { commit(c.t, c.late) })
	return ctx
}

func (*committing) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*committing) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}
func (*committing) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData)     {}
func (*committing) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// TestResendBesideALateCommit: what commits between counting and reading takes no place of an event
// that was counted.
func TestResendBesideALateCommit(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	d.commit(t, "a", "b")
	late := d.begin(t)
	changeAll(t, late, "late")
	d.commit(t, "a", "b", "c", "d")
	relayRun := start(t, d.relay, b.Open, nil)
	b.waitFor(t, 6)
	if err := relayRun.stop(); err != nil {
		t.Fatal(err)
	}

	config, err := pgxpool.ParseConfig(d.URLAs("relay"))
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.Tracer = &committing{t: t, late: late}
	r := d.resend()
	if r.DB, err = pgxpool.NewWithConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	defer r.DB.Close()

	const fives = 50 // a tenth of it is read together
	var to sink
	tally, _, err := r.Send(t.Context(), span(t, r, relay.Ends{FromOldest: true}), fives, to.publish, ignore)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b.received(), to.got); diff != "" || tally.Events() != 6 {
		t.Errorf("counted %d (-sent +sent again):\n%s", tally.Events(), diff)
	}
}

func TestResendLeavesDeadLetters(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.commit(t, "a", "b", "a", "b", "a", "c", "c") // 1 to 7
	d.passed(t, 7)
	r := d.resend()
	wantResent(t, r, relay.Ends{FromID: 1}, 1, 2, 3, 4, 5, 6, 7)

	// Event 5 has no letter of its own, but its aggregate waits from 3 on.
	d.letter(t, 3, "parked")
	d.letter(t, 4, "retry")
	d.letter(t, 6, "skipped")
	d.letter(t, 7, "sent")
	got := wantResent(t, r, relay.Ends{FromID: 1}, 1, 2, 7)
	if got.Parked != 3 || got.Skipped != 1 || got.Unsent != 0 {
		t.Errorf("%+v", got)
	}

	other := r
	other.Relay = "other"
	if _, err := other.Span(t.Context(), relay.Ends{FromID: 1}); !errors.Is(err, relay.ErrNothingSent) {
		t.Errorf("a relay without a cursor: %v", err)
	}
}

func TestResendWhatIsAskedFor(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.commit(t, "a", "b", "a", "b")
	d.exec(t, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'others', 'a', 'other.changed', '12345' FROM generate_series(1, 2)`)
	d.passed(t, 6)

	of := func(topic, aggregate string) relay.Resend {
		r := d.resend()
		r.Topic, r.Aggregate = topic, aggregate
		return r
	}
	wantResent(t, of("", ""), relay.Ends{FromID: 2, UntilID: 5}, 2, 3, 4, 5)
	wantResent(t, of("", "a"), relay.Ends{FromID: 1}, 1, 3, 5, 6)
	wantResent(t, of("things", "b"), relay.Ends{FromID: 1}, 2, 4)
	wantResent(t, of("things", "b"), relay.Ends{FromID: 5})

	got := wantResent(t, of("others", ""), relay.Ends{FromOldest: true}, 5, 6)
	if len(got.Topics) != 1 || got.Topics[0].Topic != "others" || got.Bytes() != 2*(5+2) ||
		got.Topics[0].FirstID != 5 || got.Topics[0].LastID != 6 {
		t.Errorf("%+v", got)
	}
}

// TestResendFromATime has an event a minute, from midnight on, over two days.
func TestResendFromATime(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	day := d.twoDays(t)
	at := func(minutes int) time.Time { return day.Add(time.Duration(minutes) * time.Minute) }

	for _, c := range []struct {
		ends        relay.Ends
		first, last int64
	}{
		{relay.Ends{FromTime: at(0)}, 1, 2880},
		{relay.Ends{FromTime: at(100)}, 100, 2880}, // event 101 is of minute 100; one more is to be safe
		{relay.Ends{FromTime: at(100).Add(time.Second)}, 101, 2880},
		{relay.Ends{FromTime: at(1440), UntilTime: at(1441)}, 1440, 1442},
		{relay.Ends{FromTime: at(10_000)}, 2881, 2880},
		{relay.Ends{FromID: 7, UntilTime: at(10_000)}, 7, 2880},
		{relay.Ends{FromID: 7, UntilTime: at(-10)}, 7, 0},
		{relay.Ends{FromID: 7, UntilID: 9999}, 7, 2880},
		{relay.Ends{FromOldest: true, UntilID: 12}, 1, 12},
	} {
		s := span(t, d.resend(), c.ends)
		if s.FromID != c.first || s.UntilID != c.last {
			t.Errorf("%+v: from %d until %d, want %d and %d", c.ends, s.FromID, s.UntilID, c.first, c.last)
		}
	}
}

func TestResendRefusesWhatIsNotKept(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	day := d.twoDays(t)
	r := d.resend()
	s := span(t, r, relay.Ends{FromID: 1})
	today := span(t, r, relay.Ends{FromTime: day.Add(36 * time.Hour)})

	// A day goes while its events are sent.
	begun := 0
	_, next, err := r.Send(t.Context(), s, 1000, func(context.Context, []relay.Message) error {
		if begun++; begun == 1 {
			d.exec(t, `DROP TABLE outbox_events_`+day.Format("20060102"))
		}
		return nil
	}, ignore)
	var dropped *relay.NotKeptError
	if !errors.As(err, &dropped) || !dropped.During || next != 101 {
		t.Errorf("a day is dropped while it is sent: %v, go on with %d", err, next)
	}
	if _, err := r.Count(t.Context(), today, nil); !errors.As(err, &dropped) || !dropped.During {
		t.Errorf("a day is dropped before the first event: %v", err)
	}

	for _, ends := range []relay.Ends{
		{FromID: 1}, {FromID: 1440}, {FromTime: day}, {FromTime: day.Add(24*time.Hour - 1)},
	} {
		_, err := r.Span(t.Context(), ends)
		if !errors.As(err, &dropped) || dropped.During || dropped.ID != 1441 ||
			!dropped.Day.Equal(day.Add(24*time.Hour)) {
			t.Errorf("%+v: %v", ends, err)
		}
	}
	if s := span(t, r, relay.Ends{FromOldest: true}); s.FromID != 1441 {
		t.Errorf("the oldest is %d", s.FromID)
	}
	if s := span(t, r, relay.Ends{FromTime: day.Add(24 * time.Hour)}); s.FromID != 1441 {
		t.Errorf("the oldest by its time is %d", s.FromID)
	}
}

func TestResendRefusesARestoredDatabase(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.commit(t, "a")
	d.passed(t, 1)
	d.exec(t, `UPDATE outbox_cursors SET system_identifier = 1`)
	if _, err := d.resend().Span(t.Context(), relay.Ends{FromID: 1}); !errors.Is(err, relay.ErrRestored) {
		t.Errorf("%v", err)
	}
}

// Whatever ends it, the id that it returns is the first that is not certainly sent.
func TestResendGoesOn(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.twoDays(t)
	r := d.resend()
	const rate, batch = 10_000, 1000
	away := errors.New("away")

	for _, c := range []struct {
		name string
		// of the second batch
		fail func(stop func()) error
		next int64
		want error
	}{
		{"nothing of a batch is sent", func(func()) error { return away }, batch + 1, away},
		{"some of it is", func(func()) error {
			return &relay.BatchError{Durable: 3, Err: away}
		}, batch + 4, away},
		{"one of it is refused", func(func()) error {
			return &relay.BatchError{Durable: 5, Refused: true, Index: 5, Err: away}
		}, batch + 6, away},
		{"an interrupt lets the batch finish", func(stop func()) error { stop(); return nil },
			2*batch + 1, context.Canceled},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			batches := 0
			s := span(t, r, relay.Ends{FromID: 1})
			_, next, err := r.Send(ctx, s, rate, func(ctx context.Context, _ []relay.Message) error {
				if batches++; batches == 2 {
					err := c.fail(stop)
					return errors.Join(err, ctx.Err()) // the batch is not interrupted
				}
				return nil
			}, ignore)
			if next != c.next || !errors.Is(err, c.want) {
				t.Errorf("go on with %d, want %d: %v", next, c.next, err)
			}
		})
	}
}

// twoDays has 1440 events of tomorrow and as many of the day after, which a relay has sent. It
// returns tomorrow, the first day that is kept.
func (d database) twoDays(t testing.TB) (tomorrow time.Time) {
	t.Helper()
	tomorrow = time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
	d.exec(t, `DO $$
		DECLARE part text;
		BEGIN
			FOR part IN SELECT inhrelid::regclass FROM pg_inherits
				WHERE inhparent = 'outbox_events'::regclass
				  AND right(inhrelid::regclass::text, 8) < '`+tomorrow.Format("20060102")+`'
			LOOP
				EXECUTE 'DROP TABLE ' || part;
			END LOOP;
		END $$`)
	d.exec(t, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, created_at)
		SELECT 'things', n % 100, 'thing.changed', '{}', $1::timestamptz + n * interval '1 minute'
		FROM generate_series(0, 2879) n`, tomorrow)
	d.passed(t, 2880)
	return tomorrow
}

// The events of a batch are large, so they are read in pieces. Before the last one their day goes.
func TestResendMissesNoDayThatGoesWithinABatch(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	day := d.twoDays(t)
	d.exec(t, `UPDATE outbox_events SET payload = convert_to(repeat('x', 1000000), 'utf8') WHERE id BETWEEN 1420 AND 1440`)
	r := d.resend()
	s := span(t, r, relay.Ends{FromID: 1420, UntilID: 1500})

	drop := sync.OnceFunc(func() { d.exec(t, `DROP TABLE outbox_events_`+day.Format("20060102")) })
	_, next, err := r.Send(t.Context(), s, 100_000, func(context.Context, []relay.Message) error {
		drop()
		return nil
	}, ignore)
	var dropped *relay.NotKeptError
	if !errors.As(err, &dropped) || !dropped.During || next != 1501 {
		t.Errorf("the end of a day is dropped while it is sent: %v, go on with %d", err, next)
	}
}

// passed puts the cursor of the relay "main" behind all events, as one that has sent them.
func (d database) passed(t testing.TB, last int64) {
	t.Helper()
	d.exec(t, `INSERT INTO outbox_cursors (relay, last_id, seen, system_identifier, database_oid)
		SELECT 'main', $1, pg_current_snapshot(), s.system_identifier, d.oid
		FROM pg_control_system() s, pg_database d WHERE d.datname = current_database()`, last)
}

// letter makes a dead letter of an event.
func (d database) letter(t testing.TB, id int64, state string) {
	t.Helper()
	d.exec(t, `INSERT INTO outbox_dead_letters (relay, id, xid, event_id, aggregate_type, aggregate_id,
			event_type, payload, headers, created_at, refusal, state, note)
		SELECT 'main', id, xid, event_id, aggregate_type, aggregate_id, event_type, payload, headers,
			created_at, 'too large', $2, 'a test' FROM outbox_events WHERE id = $1`, id, state)
}

// While stragglers go out in chunks, only those up to the last chunk were sent.
func TestResendBetweenChunks(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	before := ask[string](t, d, `SELECT pg_current_snapshot()::text`)
	d.commit(t, "a", "b", "c", "d", "e")
	d.passed(t, 5)
	d.exec(t, `UPDATE outbox_cursors SET seen = $1::text::pg_snapshot, chunk_after = 2,
		chunk_seen = pg_current_snapshot()`, before)
	if got := wantResent(t, d.resend(), relay.Ends{FromID: 1}, 1, 2); got.Unsent != 3 {
		t.Errorf("%+v", got)
	}
}

// A lower bound holds on a slow machine, too.
func TestResendKeepsToTheRate(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.twoDays(t)
	var to sink
	begun := time.Now()
	s := span(t, d.resend(), relay.Ends{FromID: 1, UntilID: 31})
	if _, _, err := d.resend().Send(t.Context(), s, 10, to.publish, ignore); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); len(to.got) != 31 || took < 3*time.Second {
		t.Errorf("%d events at 10 a second took %s", len(to.got), took)
	}
}
