package outbox_test

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

	"github.com/oncepay/oncepay/internal/outbox"
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
	outbox.Publisher
	picky *picky
}

func (p *pickyPublisher) Publish(ctx context.Context, batch []outbox.Message, next outbox.Progress) error {
	p.picky.mu.Lock()
	defer p.picky.mu.Unlock()
	at := slices.IndexFunc(batch, func(m outbox.Message) bool { return p.picky.refused[m.EventID] })
	if at < 0 {
		return p.Publisher.Publish(ctx, batch, next)
	}
	taken, refused := slices.Clone(batch[:at]), &outbox.RefusedError{Index: at, Durable: at, Err: errors.New("too large")}
	for i := at + 2; i < len(batch); i++ {
		taken, refused.Ahead = append(taken, batch[i]), append(refused.Ahead, i)
	}
	return errors.Join(p.Publisher.Publish(ctx, taken, next), refused)
}

func (p *picky) open(b *broker) func(context.Context, string) (outbox.Publisher, *outbox.Progress, error) {
	return func(ctx context.Context, relay string) (outbox.Publisher, *outbox.Progress, error) {
		inner, kept, err := b.Open(ctx, relay)
		return &pickyPublisher{inner, p}, kept, err
	}
}

func letters(t testing.TB, d database) []outbox.DeadLetter {
	t.Helper()
	letters, err := outbox.DeadLetters(t.Context(), d.relay, "main", true)
	if err != nil {
		t.Fatal(err)
	}
	return letters
}

func of(ms []outbox.Message, aggregate string) (ids []uuid.UUID) {
	for _, m := range ms {
		if m.AggregateID == aggregate && !slices.Contains(ids, m.EventID) {
			ids = append(ids, m.EventID)
		}
	}
	return ids
}

func TestARefusedEventParksItsAggregateAndAllOthersFlow(t *testing.T) {
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
			want := outbox.DeadLetter{
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
				err = outbox.RetryDeadLetter(t.Context(), d.relay, "main", letter.ID)
			} else {
				all, err = all[1:], outbox.SkipDeadLetter(t.Context(), d.relay, "main", letter.ID, "a test")
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
			if err := outbox.RetryDeadLetter(t.Context(), d.relay, "main", letter.ID); !errors.Is(err, outbox.ErrNoDeadLetter) {
				t.Errorf("a letter that was decided on: %v", err)
			}
		})
	}
}

func TestKeptProgressThatIsAheadIsWhereATermBegins(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	es := d.commit(t, "a", "a")
	first := start(t, d.relay, b.Open, nil)
	b.waitFor(t, 2)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	kept := progressOf(t, d)
	d.exec(t, `UPDATE outbox_cursors SET batches = batches - 1, last_id = 0`) // as if the move had been lost
	b.kept = &kept
	start(t, d.relay, b.Open, nil)
	es = append(es, d.commit(t, "a")...)
	b.waitFor(t, 3)
	if diff := cmp.Diff(es, b.ids()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestADatabaseThatWentBackIsRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*outbox.Progress){
		"more batches than a crash can lose": func(p *outbox.Progress) { p.Batches += 3 },
		"another timeline":                   func(p *outbox.Progress) { p.Batches++; p.Timeline++ },
		"a snapshot of the future":           func(p *outbox.Progress) { p.Batches++; p.Seen = "1000000000:1000000000:" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, b := newDatabase(t), &broker{}
			d.commit(t, "a")
			first := start(t, d.relay, b.Open, nil)
			b.waitFor(t, 1)
			if err := first.stop(); err != nil {
				t.Fatal(err)
			}
			kept := progressOf(t, d)
			change(&kept)
			b.kept = &kept
			relay := outbox.Relay{DB: d.relay, Open: b.Open, Name: "main"}
			ctx, cancel := context.WithTimeout(t.Context(), soon)
			defer cancel()
			if err := relay.Run(ctx); !errors.Is(err, outbox.ErrRestored) {
				t.Errorf("Run returned %v", err)
			}
			d.exec(t, `UPDATE outbox_cursors SET epoch = gen_random_uuid()`) // an operator says: go on from the table
			start(t, d.relay, b.Open, nil)
			d.commit(t, "a")
			b.waitFor(t, 2)
		})
	}
}

// progressOf is what a Publisher would have kept last.
func progressOf(t testing.TB, d database) (p outbox.Progress) {
	t.Helper()
	text := ask[string](t, d, `SELECT json_build_object('system_identifier', system_identifier, 'database_oid', database_oid::bigint, 'epoch', epoch,
		'timeline', ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint, 'batches', batches, 'last_id', last_id, 'seen', seen::text)::text FROM outbox_cursors`)
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	return p
}
