package credentials_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/testenv"
)

// invented returns the nth of the tokens that were never issued.
func invented(n int) string {
	return withChecksum(fmt.Sprintf("oncepay_%016d_%032d", n, n))
}

// verify asks until the look-up, which has 2 s, came to an end: a machine may pause for longer.
func (b *bench) verify(t *testing.T, token string) error {
	for {
		if _, err := b.verifier.Verify(t.Context(), token); !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
}

// A new client among a thousand strangers waits as long as they do, and they cost few queries.
func TestUnknownTokensAreLookedUpInBatches(t *testing.T) {
	t.Parallel()
	b := setup(t)
	token := b.create(t)
	before := b.api.Stat().AcquireCount()
	release := b.hold(t)
	var all, begun sync.WaitGroup
	begun.Add(901)
	for n := range 900 {
		all.Go(func() {
			begun.Done()
			if err := b.verify(t, invented(n)); !errors.Is(err, credentials.ErrUnauthorized) {
				t.Errorf("invented: %v", err)
			}
		})
	}
	all.Go(func() {
		begun.Done()
		if err := b.verify(t, token.Reveal()); err != nil {
			t.Errorf("good: %v", err)
		}
	})
	begun.Wait()
	release()
	all.Wait()
	if n := b.api.Stat().AcquireCount() - before; n > 100 {
		t.Errorf("%d queries for 901 ids", n)
	}
}

func TestTooManyUnknownTokensGetErrBusy(t *testing.T) {
	t.Parallel()
	const most, inHand = 1000, 100
	b := setup(t)
	token := b.create(t)
	if _, err := b.verifier.Verify(t.Context(), token.Reveal()); err != nil {
		t.Fatal(err)
	}
	b.clock.advance(time.Minute) // what is known of it is too old

	release := b.hold(t)
	var all sync.WaitGroup
	var busy, done atomic.Int64
	for n := range most + 2*inHand {
		all.Go(func() {
			_, err := b.verifier.Verify(t.Context(), invented(n))
			switch {
			case errors.Is(err, credentials.ErrBusy):
				busy.Add(1)
			case err == nil:
				t.Error("an invented token is good")
			default:
				done.Add(1)
			}
		})
	}
	testenv.Eventually(t, 10*time.Second, func() error {
		if n := busy.Load(); n < inHand {
			return fmt.Errorf("%d were told to come back", n)
		}
		return nil
	})

	// A client that was seen before is let in, and goes ahead of those that wait.
	all.Go(func() {
		if err := b.verify(t, token.Reveal()); err != nil {
			t.Errorf("known: %v", err)
		}
		if n := done.Load(); n > most/2 {
			t.Errorf("%d strangers were before it", n)
		}
	})
	release()
	all.Wait()
}

// A look-up that has begun may have missed what was committed since.
func TestRunningLookupTakesNoMoreWaiters(t *testing.T) {
	t.Parallel()
	b := setup(t)
	release := b.hold(t)
	first := make(chan error)
	before := b.api.Stat().AcquireCount()
	go func() {
		_, err := b.verifier.Verify(t.Context(), invented(1))
		first <- err
	}()
	testenv.Eventually(t, 10*time.Second, func() error {
		if b.api.Stat().AcquireCount() == before { // it is counted after it shows as acquired
			return errors.New("it has not begun")
		}
		return nil
	})

	second := make(chan error)
	before++
	go func() {
		_, err := b.verifier.Verify(t.Context(), invented(1))
		second <- err
	}()
	release()
	for _, err := range []error{<-first, <-second} {
		if !errors.Is(err, credentials.ErrUnauthorized) {
			t.Error(err)
		}
	}
	if n := b.api.Stat().AcquireCount() - before; n != 1 {
		t.Errorf("%d queries for the second, want one of its own", n)
	}
}
