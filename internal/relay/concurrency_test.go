package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/testenv"
)

func TestConcurrentWritersWithOpenTransaction(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 7, 50} {
		t.Run(fmt.Sprintf("limit %d", limit), func(t *testing.T) {
			t.Parallel()
			d, b := newDatabase(t), &broker{}
			// It holds an id and an xid lower than all that follow.
			open := d.begin(t)
			held := changeAll(t, open, "held")

			start(t, d.relay, b.Open, func(r *relay.Relay) { r.Batch = limit })
			committed := write(t, d)
			b.waitFor(t, len(committed)) // while the other is open
			if got := b.ids(); slices.Contains(got, held[0]) {
				t.Error("an event of the open transaction was published")
			}
			held = append(held, changeAll(t, open, "held")...)
			commit(t, open)
			b.waitFor(t, len(committed)+len(held))
			complete(t, b.received(), append(committed, held...))
		})
	}
}

// write lets writers change hot aggregates all at once, and returns the ids of the events that they committed.
func write(t *testing.T, d database) (committed []uuid.UUID) {
	t.Helper()
	const writers, transactions = 6, 25
	config, err := pgxpool.ParseConfig(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = writers
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var all sync.WaitGroup
	var mu sync.Mutex
	for w := range writers {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			for range transactions {
				ids, err := transact(t.Context(), pool, rng)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				committed = append(committed, ids...)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return committed
}

var errChanged = errors.New("changed its mind")

// transact changes one or two of four aggregates, at times in a savepoint that it rolls back to, and commits three times of
// four. It lingers between its statements, so that ids are drawn in another order than transactions end in.
func transact(ctx context.Context, pool *pgxpool.Pool, rng *rand.Rand) (ids []uuid.UUID, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		first := rng.IntN(4)
		for aggregate := first; aggregate < min(4, first+1+rng.IntN(2)); aggregate++ { // ascending: no deadlock
			e, err := change(ctx, tx, fmt.Sprint("hot-", aggregate))
			if err != nil {
				return err
			}
			ids = append(ids, e.ID)
			if _, err := tx.Exec(ctx, `SELECT pg_sleep($1)`, rng.Float64()/300); err != nil {
				return err
			}
			if rng.IntN(4) > 0 {
				continue
			}
			keep := rng.IntN(2) == 0
			err = pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
				e, err := change(ctx, savepoint, fmt.Sprint("hot-", aggregate))
				if err != nil {
					return err
				}
				if !keep {
					return errChanged
				}
				ids = append(ids, e.ID)
				return nil
			})
			if err != nil && !errors.Is(err, errChanged) {
				return err
			}
		}
		if rng.IntN(4) == 0 {
			return errChanged
		}
		return nil
	})
	if errors.Is(err, errChanged) {
		return nil, nil
	}
	return ids, err
}

// complete checks that exactly the events in want arrived, each once, and those of an aggregate as version 1, 2, 3 …
func complete(t testing.TB, got []relay.Message, want []uuid.UUID) {
	t.Helper()
	missing := map[uuid.UUID]bool{}
	for _, id := range want {
		missing[id] = true
	}
	last := map[string]int64{}
	for i, m := range got {
		if !missing[m.EventID] {
			t.Errorf("message %d, %s version %d, is invented or doubled", i, m.AggregateID, *m.AggregateVersion)
		}
		delete(missing, m.EventID)
		if *m.AggregateVersion != last[m.AggregateID]+1 {
			t.Errorf("message %d, %s version %d, comes behind version %d", i, m.AggregateID, *m.AggregateVersion, last[m.AggregateID])
		}
		last[m.AggregateID] = *m.AggregateVersion
	}
	if len(missing) > 0 {
		t.Errorf("%d of %d events are lost", len(missing), len(want))
	}
}

func TestEventBehindHigherIDIsPublished(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	start(t, d.relay, b.Open, nil)
	var want []uuid.UUID
	for i := range 15 {
		// The one that commits first has the lower xid and the higher id: the other may stand above the snapshot's xmax.
		first, second := d.begin(t), d.begin(t)
		if _, err := first.Exec(t.Context(), `SELECT pg_current_xact_id()`); err != nil {
			t.Fatal(err)
		}
		late := changeAll(t, second, fmt.Sprint("late-", i))
		want = append(want, changeAll(t, first, fmt.Sprint("early-", i))...)
		commit(t, first)
		b.waitFor(t, len(want))
		want = append(want, late...)
		commit(t, second)
		b.waitFor(t, len(want))
	}
	if got := b.ids(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestStragglerChunksSurviveRestart(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	one, other := d.begin(t), d.begin(t)
	var ofOne, ofOther []uuid.UUID
	for i := range 8 { // their ids interleave
		ofOne = append(ofOne, changeAll(t, one, fmt.Sprint("one-", i%2))...)
		ofOther = append(ofOther, changeAll(t, other, fmt.Sprint("other-", i%2))...)
	}
	b := &broker{}
	var stop context.CancelFunc
	limited := func(r *relay.Relay) { r.Batch = 3 }
	ahead := d.commit(t, "ahead")
	r := start(t, d.relay, b.Open, limited)
	b.waitFor(t, 1)
	_ = r.stop()

	// The first chunk of one's goes out, and no more: the relay ends behind it, with the cursor moved.
	hold := make(chan struct{})
	b.onPublish = func(context.Context, []relay.Message) (int, error) { stop(); <-hold; return 0, nil }
	ctx, cancel := context.WithCancel(t.Context())
	stop = cancel
	commit(t, one)
	done := make(chan error, 1)
	chunked := &relay.Relay{DB: d.relay, Open: b.Open, Name: "main", Lease: time.Minute, Batch: 3, Log: slog.New(slog.DiscardHandler)}
	go func() { done <- chunked.Run(ctx) }()
	next(t, ctx.Done(), "the first chunk")
	// Now its chunks are counted, the rest of other's commits below and above the place where the chunk ended.
	commit(t, other)
	last := d.commit(t, "ahead", "one-0")
	close(hold)
	if err := next(t, done, "the relay"); err != nil {
		t.Fatal(err)
	}
	if !ask[bool](t, d, `SELECT chunk_after IS NOT NULL AND chunk_seen IS NOT NULL FROM outbox_cursors`) {
		t.Error("the place among the stragglers was not written down")
	}

	b.onPublish = nil
	want := slices.Concat(ahead, ofOne, ofOther, last)
	start(t, d.relay, b.Open, limited)
	b.waitFor(t, len(want))
	testenv.Eventually(t, soon, func() error {
		if ask[bool](t, d, `SELECT chunk_after IS NOT NULL FROM outbox_cursors`) {
			return errors.New("still in chunks")
		}
		return nil
	})
	complete(t, b.received(), want)
	if got := b.ids()[1:9]; !slices.Equal(got, ofOne) {
		t.Errorf("the chunks are %v, want one transaction's events alone: %v", got, ofOne)
	}
	if got, want := b.batches[:4], []int{1, 3, 3, 2}; !slices.Equal(got, want) {
		t.Errorf("batches of %v, want %v", got, want)
	}
}
