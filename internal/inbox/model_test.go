package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/testenv"
)

// Random deliveries, faults and decisions. In the end everything was applied once or skipped by the operator, and what was
// applied of an aggregate was applied in order.
func TestEverythingIsAppliedOnceOrSkipped(t *testing.T) {
	t.Parallel()
	for range 2 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			runModel(t, seed)
		})
	}
}

const modelPartitions, modelKeys = 3, 7

func runModel(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	cluster := kfake.MustCluster(kfake.NumBrokers(1))
	t.Cleanup(cluster.Close)
	commits := watchCommits(cluster)
	d := newDesk(t, cluster.ListenAddrs(), modelPartitions)
	member := func() (stop func()) {
		c := d.consumer(t)
		c.Tries, c.TryFor, c.MaxDeadLetters = 2, 5*time.Millisecond, 4
		c.Handle = func(ctx context.Context, tx pgx.Tx, events []inbox.Event) error {
			if rand.IntN(20) == 0 {
				return errors.New("a fault that passes")
			}
			return d.handle(ctx, tx, events)
		}
		return d.start(t, c)
	}

	ctx, cancel := context.WithCancel(t.Context())
	var operator sync.WaitGroup
	skipped := map[uuid.UUID]bool{} // the operator's, until it is done
	operator.Go(func() { d.decide(ctx, t, rand.New(rand.NewPCG(seed, 2)), skipped) })

	// What is produced, in order of each aggregate; events are delivered again later, but never before their predecessors.
	var all []*kgo.Record
	wanted := map[uuid.UUID]bool{}
	sequences := map[int]int{}
	stops := []func(){member()}
	for range 60 {
		for range 1 + random.IntN(6) {
			if len(all) > 0 && random.IntN(4) == 0 {
				again := *all[random.IntN(len(all))]
				d.produce(t, &again)
				continue
			}
			key, id := random.IntN(modelKeys), uuid.New()
			sequences[key] += 1 + random.IntN(10)/9 // a gap, now and then
			headers := []string{"ce_sequence", fmt.Sprint(sequences[key])}
			switch random.IntN(12) {
			case 0:
				headers = append(headers, poisoned...)
			case 1:
				headers = append(headers, "ce_source", "") // no event
			case 2:
				headers = append(headers, "ce_time", ago(2+random.IntN(3)).Format(time.RFC3339Nano))
			}
			r := d.event(int32(key%modelPartitions), id, fmt.Sprint(key), headers...)
			wanted[id] = !slices.Contains(headers, "ce_source")
			all = append(all, r)
			clone := *r
			d.produce(t, &clone)
		}
		switch random.IntN(12) {
		case 0: // what is done is not committed: killed before its offsets were
			commits.refuse.Store(true)
		case 1:
			commits.refuse.Store(false)
		case 2, 3:
			if len(stops) < 2 {
				stops = append(stops, member())
			} else {
				stops[0]()
				stops = stops[1:]
			}
		case 4:
			stops[len(stops)-1]()
			stops[len(stops)-1] = member()
		case 5:
			d.cured.Store(!d.cured.Load())
		}
	}

	commits.refuse.Store(false)
	d.cured.Store(true)
	testenv.Eventually(t, 2*time.Minute, func() error {
		d.mu.Lock()
		lag := d.lag
		d.mu.Unlock()
		var open int
		if err := d.owner.QueryRow(t.Context(), `SELECT count(*) FROM inbox_dead_letters WHERE state IN ('parked', 'retry')`).Scan(&open); err != nil {
			return err
		}
		if open > 0 || lag != 0 {
			return fmt.Errorf("lag %d, %d letters", lag, open)
		}
		return d.accounted(t, wanted)
	})
	cancel()
	operator.Wait()
	for _, stop := range stops {
		stop()
	}

	rows, err := d.owner.Query(t.Context(), `SELECT key, sequence, event_id FROM applied ORDER BY i`)
	if err != nil {
		t.Fatal(err)
	}
	var key string
	var sequence int64
	var id uuid.UUID
	last, applied := map[string]int64{}, map[uuid.UUID]bool{}
	_, err = pgx.ForEachRow(rows, []any{&key, &sequence, &id}, func() error {
		if applied[id] {
			t.Errorf("%s took effect twice", id)
		}
		if skipped[id] {
			t.Errorf("%s was skipped and took effect", id)
		}
		if sequence <= last[key] {
			t.Errorf("key %s: %d after %d", key, sequence, last[key])
		}
		last[key], applied[id] = sequence, true
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d produced, %d took effect, %d skipped", len(all), len(applied), len(skipped))
}

// accounted says what was neither applied nor skipped. What is no event has another id as a letter: they are counted.
func (d *desk) accounted(t *testing.T, wanted map[uuid.UUID]bool) error {
	rows, err := d.owner.Query(t.Context(), `SELECT event_id FROM applied UNION ALL SELECT event_id FROM inbox_dead_letters WHERE state = 'skipped'`)
	if err != nil {
		return err
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return err
	}
	known := map[uuid.UUID]bool{}
	for _, id := range found {
		known[id] = true
	}
	for id, isEvent := range wanted {
		if isEvent && !known[id] {
			return fmt.Errorf("event %s is neither applied nor skipped", id)
		}
	}
	return nil
}

// decide retries and skips what it finds, at random, until ctx ends.
func (d *desk) decide(ctx context.Context, t *testing.T, random *rand.Rand, skipped map[uuid.UUID]bool) {
	for ctx.Err() == nil {
		letters, err := inbox.DeadLetters(ctx, d.pool, "test", false)
		if err == nil && len(letters) > 0 {
			l := letters[random.IntN(len(letters))]
			if random.IntN(3) > 0 {
				err = retry(ctx, d.pool, l.ID)
			} else if err = inbox.SkipDeadLetter(ctx, d.pool, "test", l.ID, "at random"); err == nil {
				skipped[l.EventID] = true
			}
		}
		if err != nil && !errors.Is(err, inbox.ErrNoDeadLetter) && ctx.Err() == nil {
			t.Error(err)
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(1+random.IntN(40)) * time.Millisecond):
		}
	}
}
