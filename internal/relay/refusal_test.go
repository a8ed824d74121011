package relay_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/testenv"
)

// picky is a broker that refuses some events for what they are, in bundles: with the one that it refuses it refuses the
// next one of the batch, and takes what is behind.
type picky struct {
	mu      sync.Mutex
	refused map[uuid.UUID]bool
}

func (p *picky) refuse(ids ...uuid.UUID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = map[uuid.UUID]bool{}
	for _, id := range ids {
		p.refused[id] = true
	}
}

type pickyPublisher struct {
	relay.Publisher
	picky *picky
}

func (p *pickyPublisher) Publish(ctx context.Context, batch []relay.Message, next relay.Progress) error {
	p.picky.mu.Lock()
	defer p.picky.mu.Unlock()
	at := slices.IndexFunc(batch, func(m relay.Message) bool { return p.picky.refused[m.EventID] })
	if at < 0 {
		return p.Publisher.Publish(ctx, batch, next)
	}
	taken, refused := slices.Clone(batch[:at]), &relay.BatchError{Refused: true, Index: at, Durable: at, Err: errors.New("too large")}
	for i := at + 2; i < len(batch); i++ {
		taken, refused.Ahead = append(taken, batch[i]), append(refused.Ahead, i)
	}
	return errors.Join(p.Publisher.Publish(ctx, taken, next), refused)
}

func (p *picky) open(b *broker) func(context.Context, string, string) (relay.Publisher, *relay.Progress, error) {
	return func(ctx context.Context, relay, cursor string) (relay.Publisher, *relay.Progress, error) {
		inner, kept, err := b.Open(ctx, relay, cursor)
		return &pickyPublisher{inner, p}, kept, err
	}
}

func letters(t testing.TB, d database) []relay.DeadLetter {
	t.Helper()
	letters, err := relay.DeadLetters(t.Context(), d.relay, "main", true)
	if err != nil {
		t.Fatal(err)
	}
	return letters
}

func of(ms []relay.Message, aggregate string) (ids []uuid.UUID) {
	for _, m := range ms {
		if m.AggregateID == aggregate && !slices.Contains(ids, m.EventID) {
			ids = append(ids, m.EventID)
		}
	}
	return ids
}

func TestRefusedEventParksItsAggregateOnly(t *testing.T) {
	t.Parallel()
	for _, decision := range []string{"retry", "skip"} {
		t.Run(decision, func(t *testing.T) {
			t.Parallel()
			d, b, p := newDatabase(t), &broker{}, &picky{}
			es := d.commit(t, "a", "b", "c", "b", "b", "a", "c") // b's first is refused
			p.refuse(es[1])
			start(t, d.relay, p.open(b), nil)
			es = append(es, d.commit(t, "a", "b", "c")...)
			testenv.Eventually(t, soon, func() error {
				if a, c := of(b.received(), "a"), of(b.received(), "c"); len(a) != 3 || len(c) != 3 {
					return fmt.Errorf("of the others %d and %d events arrived, want 3 and 3", len(a), len(c))
				}
				if got := letters(t, d); len(got) != 1 || got[0].Waiting != 4 {
					return fmt.Errorf("dead letters: %+v", got)
				}
				return nil
			})
			letter := letters(t, d)[0]
			want := relay.DeadLetter{
				ID: letter.ID, EventID: es[1], AggregateType: "things", AggregateID: "b", Type: "thing.changed", Bytes: 2,
				Refusal: "too large", WentAhead: of(b.received(), "b"), State: "parked", ParkedAt: letter.ParkedAt, Waiting: 4,
			}
			if want.WentAhead == nil {
				want.WentAhead = []uuid.UUID{}
			}
			if diff := cmp.Diff(want, letter); diff != "" {
				t.Errorf("dead letter (-want +got):\n%s", diff)
			}
			p.refuse()
			all, err := []uuid.UUID{es[1], es[3], es[4], es[8]}, error(nil)
			if decision == "retry" {
				err = relay.RetryDeadLetter(t.Context(), d.relay, "main", letter.ID)
			} else {
				all, err = all[1:], relay.SkipDeadLetter(t.Context(), d.relay, "main", letter.ID, "a test")
			}
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, d.commit(t, "b")...) // behind what is parked
			sent := len(b.received())
			testenv.Eventually(t, soon, func() error {
				if n := ask[int](t, d, `SELECT count(*) FROM outbox_dead_letters WHERE state IN ('parked', 'retry')`); n > 0 {
					return fmt.Errorf("%d still wait", n)
				}
				if got := of(b.received(), "b"); len(got) != len(all) {
					return fmt.Errorf("%d of %d events arrived", len(got), len(all))
				}
				return nil
			})
			if sent == 0 {
				t.Error("nothing was sent before the decision")
			}
			// What had gone ahead is sent once more, behind what it had overtaken.
			got := b.received()
			last := got[len(got)-len(all):]
			if diff := cmp.Diff(all, of(last, "b")); diff != "" {
				t.Errorf("events of the aggregate, in order (-want +got):\n%s", diff)
			}
			if err := relay.RetryDeadLetter(t.Context(), d.relay, "main", letter.ID); !errors.Is(err, relay.ErrNoDeadLetter) {
				t.Errorf("a letter that was decided on: %v", err)
			}
		})
	}
}

// sendUnmoved has a relay send events, and puts the cursor back to where it was before them, as if its moves had been lost. It returns the
// events, and keeps the progress that the broker has of them.
func sendUnmoved(t *testing.T, d database, b *broker) []uuid.UUID {
	t.Helper()
	first := start(t, d.relay, b.Open, nil)
	next(t, first.leading, "a leader")
	before := d.commit(t, "a")
	d.movedTo(t, 1)
	d.exec(t, `CREATE TABLE before AS SELECT batches, last_id, seen FROM outbox_cursors`)
	open := d.begin(t)
	late := changeAll(t, open, "late")
	sent := append(before, d.commit(t, "a", "b")...)
	d.movedTo(t, 2)
	commit(t, open)
	sent = append(sent, late...)
	d.movedTo(t, 3)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	b.kept = b.progress()
	d.exec(t, `UPDATE outbox_cursors c SET batches = b.batches, last_id = b.last_id, seen = b.seen FROM before b`)
	return sent
}

func TestTermBeginsAtProgressThatIsAhead(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	es := sendUnmoved(t, d, b)
	b.kept.Timeline-- // a promoted standby that has all events
	d.commit(t, "c")
	start(t, d.relay, b.Open, nil)
	b.waitFor(t, 5)
	if diff := cmp.Diff(es, b.ids()[:4]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(b.received()) != 5 {
		t.Errorf("%d messages, want 5", len(b.received()))
	}
}

// unsure keeps the progress of the batch that begins with c, and says that there was no answer, once.
type unsure struct {
	relay.Publisher
	broker *broker
}

func (p *unsure) Publish(ctx context.Context, batch []relay.Message, next relay.Progress) error {
	err := p.Publisher.Publish(ctx, batch, next)
	if len(batch) > 0 && batch[0].AggregateID == "c" && p.broker.kept == nil {
		p.broker.kept = &next
		return errors.New("no answer")
	}
	return err
}

// The term ends, and the cursor moves behind what was acknowledged before: from there progress is ahead.
func TestBatchOfUnknownOutcomeIsNoLoss(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	r := start(t, d.relay, func(ctx context.Context, relay, cursor string) (relay.Publisher, *relay.Progress, error) {
		p, kept, err := b.Open(ctx, relay, cursor)
		return &unsure{p, b}, kept, err
	}, nil)
	next(t, r.leading, "a leader")
	release := d.holdCursor(t)
	want := d.commit(t, "a")
	b.waitFor(t, 1)
	testenv.Eventually(t, soon, func() error {
		if !ask[bool](t, d, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND usename = 'relay' AND wait_event_type = 'Lock')`) {
			return errors.New("no move waits")
		}
		return nil
	})
	want = append(want, d.commit(t, "b")...)
	b.waitFor(t, 2)
	want = append(want, d.commit(t, "c")...)
	b.waitFor(t, 3)
	release()
	want = append(want, d.commit(t, "d")...)
	b.waitFor(t, 4)
	if diff := cmp.Diff(want, b.ids()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDatabaseThatWentBackIsRefused(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]string{
		"more moves than it can lack": `UPDATE outbox_cursors SET batches = -1`,
		"a new event is gone":         `DELETE FROM outbox_events WHERE id = (SELECT max(id) FROM outbox_events)`,
		"a late event is gone":        `DELETE FROM outbox_events WHERE aggregate_id = 'late'`,
		"an id has another event":     `UPDATE outbox_events SET event_id = gen_random_uuid() WHERE id = (SELECT max(id) FROM outbox_events)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, b := newDatabase(t), &broker{}
			sendUnmoved(t, d, b)
			d.exec(t, lose)
			refuses(t, d, b)
			d.exec(t, `UPDATE outbox_cursors SET epoch = gen_random_uuid()`) // an operator says: go on from the table
			start(t, d.relay, b.Open, nil)
			last := d.commit(t, "a")
			testenv.Eventually(t, soon, func() error {
				if !slices.Contains(b.ids(), last[0]) {
					return errors.New("it does not go on")
				}
				return nil
			})
		})
	}
	for name, change := range map[string]func(*relay.Progress){
		"another cluster":  func(p *relay.Progress) { p.SystemIdentifier++ },
		"another database": func(p *relay.Progress) { p.DatabaseOID++ },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, b := newDatabase(t), &broker{}
			sendUnmoved(t, d, b)
			change(b.kept)
			refuses(t, d, b)
		})
	}
}

// progressOf is what a Publisher would have kept last.
func progressOf(t testing.TB, d database) (p relay.Progress) {
	t.Helper()
	text := ask[string](t, d, `SELECT json_build_object('system_identifier', system_identifier, 'database_oid', database_oid::bigint, 'epoch', epoch,
		'timeline', ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint, 'batches', batches, 'last_id', last_id, 'seen', seen::text)::text FROM outbox_cursors`)
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	return p
}
