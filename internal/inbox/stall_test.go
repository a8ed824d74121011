package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/testenv"
)

// isReady waits until Ready says nothing, or an error with all of these texts.
func isReady(t *testing.T, c *inbox.Consumer, texts ...string) {
	t.Helper()
	testenv.Eventually(t, waitLimit, func() error {
		err := c.Ready(t.Context())
		if len(texts) == 0 {
			return err
		}
		for _, text := range texts {
			if err == nil || !strings.Contains(err.Error(), text) {
				return fmt.Errorf("ready: %w: want %q", err, text)
			}
		}
		return nil
	})
}

// TestHandlerThatNeverReturnsIsAStall: the member keeps its partitions, and its own loop cannot say anything any more.
func TestHandlerThatNeverReturnsIsAStall(t *testing.T) {
	t.Parallel()
	b := newBench(t, testenv.Brokers(t), 2)
	c, blocked := b.consumer(t), make(chan struct{})
	unblock := sync.OnceFunc(func() { close(blocked) })
	c.Handle = func(ctx context.Context, tx pgx.Tx, events []inbox.Event) error {
		if events[0].Partition == 1 {
			<-blocked // whatever becomes of the context
		}
		return count(ctx, tx, events)
	}
	c.StallAfter = 4 * time.Second
	var mu sync.Mutex
	var told error
	c.OnStall = func(err error) {
		mu.Lock()
		defer mu.Unlock()
		told = err
	}
	b.start(t, c)
	t.Cleanup(unblock)
	b.produce(t, b.event(0, uuid.New(), "a"))
	b.effects(t, 1)
	isReady(t, c)

	b.produce(t, b.event(1, uuid.New(), "b"))
	isReady(t, c, "stalled: records wait and none is handled: "+b.topic+"/1 at offset 0 for ")
	testenv.Eventually(t, waitLimit, func() error { // Ready knows it first
		mu.Lock()
		defer mu.Unlock()
		if told == nil {
			return errors.New("OnStall was not told")
		}
		return nil
	})

	unblock()
	isReady(t, c)
	b.effects(t, 2)
}

// TestStoppedPartitionIsNamed: at the limit of dead letters nothing is parked any more. All other partitions flow.
func TestStoppedPartitionIsNamed(t *testing.T) {
	t.Parallel()
	b := newBench(t, testenv.Brokers(t), 2)
	c := b.consumer(t)
	c.StallAfter, c.MaxDeadLetters = 4*time.Second, 1
	b.start(t, c)
	b.produce(t, b.event(0, uuid.New(), "x", "ce_type", "thing.poisoned"), b.event(0, uuid.New(), "y", "ce_type", "thing.poisoned"), b.event(1, uuid.New(), "a"))
	b.effects(t, 1)
	isReady(t, c, b.topic+"/0 at offset 1 for ", "cannot be parked: too many dead letters wait for a decision: 1")
	testenv.Eventually(t, waitLimit, func() error { // its offset is committed behind the effect
		if err := c.Ready(t.Context()); err == nil || strings.Contains(err.Error(), b.topic+"/1") {
			return fmt.Errorf("ready: %w: the other partition has nothing to do", err)
		}
		return nil
	})
}
