package main

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncepay/oncepay/internal/telemetry"
)

func expiryOf(expire func(context.Context, int) (int, error)) *expiry {
	log := slog.New(slog.DiscardHandler)
	return &expiry{expire: expire, interval: time.Second, locked: &locked{log: log}, moves: func() {}, metrics: telemetry.NewWorker(prometheus.NewRegistry()), log: log}
}

// TestWorkerSharesTheDatabase: after a full batch it rests as long as that took, and for the interval when nothing is left.
func TestWorkerSharesTheDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, stop := context.WithCancel(t.Context())
		var at []time.Duration // when each batch began
		e := expiryOf(func(_ context.Context, limit int) (int, error) {
			at = append(at, time.Since(began))
			if len(at) == 5 {
				stop()
			}
			<-time.After(30 * time.Millisecond)
			if len(at) == 3 {
				return limit - 1, nil
			}
			return limit, nil
		})
		moved := 0
		e.moves = func() { moved++ }
		if err := e.run(ctx); err != nil {
			t.Fatal(err)
		}
		if moved != 5 {
			t.Errorf("5 batches released holds, %d were told", moved)
		}
		for i, want := range []time.Duration{0, 60, 120, 1150, 1210} {
			if at[i] != want*time.Millisecond {
				t.Errorf("batch %d began after %s, want %s", i+1, at[i], want*time.Millisecond)
			}
		}
	})
}

func TestStopFinishesTheBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		batches := 0
		var cut error
		e := expiryOf(func(ctx context.Context, limit int) (int, error) {
			batches++
			stop()
			synctest.Wait()
			cut = ctx.Err()
			return limit, cut
		})
		if err := e.run(ctx); err != nil || cut != nil || batches != 1 {
			t.Errorf("%d batches, the last was cut off (%v); %v", batches, cut, err)
		}
	})
}
