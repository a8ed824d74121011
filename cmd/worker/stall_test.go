package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/telemetry"
	"github.com/oncepay/oncepay/internal/testenv"
)

func newStallOf(part string, after time.Duration) *stall {
	return newStall(part, after, telemetry.NewWorker(prometheus.NewRegistry()))
}

// TestWhatMovesIsNoStall: fewer than before, another first one, something that ended, or nothing at all.
func TestWhatMovesIsNoStall(t *testing.T) {
	t.Parallel()
	day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		look    func(n int) work
		stalled bool
	}{
		"nothing waits":         {func(int) work { return work{} }, false},
		"the same waits":        {func(int) work { return work{waits: true, count: 3, first: day} }, true},
		"more and more wait":    {func(n int) work { return work{waits: true, count: int64(n), first: day} }, true},
		"now and then one ends": {func(n int) work { return work{waits: true, count: int64(3 - n/20%2), first: day} }, false},
		"another one is first": {func(n int) work {
			return work{waits: true, count: 3, first: day.Add(time.Duration(n/20) * time.Second)}
		}, false},
		"new ones end": {func(n int) work {
			return work{waits: true, count: 3, first: day, ended: day.Add(time.Duration(n/20) * time.Second)}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, found := newStallOf("psp", 100*time.Second), false
				for n := range 200 {
					s.look(c.look(n))
					stalled := s.err(t.Context()) != nil
					if early := time.Duration(n)*measureEvery < 100*time.Second; stalled && early {
						t.Fatalf("it is stalled at look %d", n)
					}
					found = found || stalled
					<-time.After(measureEvery)
				}
				if found != c.stalled {
					t.Errorf("stalled: %t", found)
				}

				// The database was away: the part could not do anything either.
				s.unknown()
				if err := s.err(t.Context()); err != nil {
					t.Error(err)
				}
				<-time.After(time.Minute) // nothing is measured any more
				if err := s.err(t.Context()); err == nil || !strings.Contains(err.Error(), "could not be measured") {
					t.Error(err)
				}
			})
		})
	}
}

// TestWhatThisWorkerEndsIsNoStall: the database shows the same first one at every look, because that one cannot end.
func TestWhatThisWorkerEndsIsNoStall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, stuck := newStallOf("expiry", 50*time.Second), work{waits: true, count: 100, first: time.Now()}
		for range 10 {
			s.moves()
			for range 20 {
				s.look(stuck)
				<-time.After(measureEvery)
			}
		}
		if err := s.err(t.Context()); err != nil {
			t.Errorf("others end: %v", err)
		}
		for range 10 {
			s.look(stuck)
			<-time.After(measureEvery)
		}
		if err := s.err(t.Context()); err == nil {
			t.Error("nothing has ended for a minute, and it is no stall")
		}
	})
}

// TestOnlyResultsMove: an operation that stays unknown, or whose result came from elsewhere, does not count.
func TestOnlyResultsMove(t *testing.T) {
	t.Parallel()
	s := newStallOf("psp", pspStall)
	c := newCards(config.Worker{PSPURL: "http://127.0.0.1:1", PSPAPIKey: apiKey, PSPConcurrency: 1}, nil, prometheus.NewRegistry(), s,
		slog.New(slog.DiscardHandler))
	for state, recorded := range map[payments.OperationState]payments.Recorded{
		payments.Unknown: payments.Applied, payments.Succeeded: payments.Repeated, payments.OperationFailed: payments.Stale,
	} {
		began := s.moved
		if c.worker.Observe.Recorded(payments.Charge, state, recorded); s.moved != began {
			t.Errorf("%s, recorded as %d, moves", state, recorded)
		}
	}
	for _, state := range []payments.OperationState{payments.Succeeded, payments.OperationDeclined, payments.OperationFailed} {
		began := s.moved
		if c.worker.Observe.Recorded(payments.Charge, state, payments.Applied); s.moved == began {
			t.Errorf("%s does not move", state)
		}
	}
}

// isReady waits until the verdict is nil, or has all of these texts.
func (s *stall) isReady(t *testing.T, measure func(context.Context), texts ...string) {
	t.Helper()
	testenv.Eventually(t, soon, func() error {
		measure(t.Context())
		err := s.err(t.Context())
		if len(texts) == 0 {
			return err
		}
		for _, text := range texts {
			if err == nil || !strings.Contains(err.Error(), text) {
				return fmt.Errorf("%w: want %q", err, text)
			}
		}
		return nil
	})
}

// TestPSPThatHangsIsAStall: it takes calls and does not answer.
func TestPSPThatHangsIsAStall(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	s := newCardShop(t, db)
	_, address := newPSPServer(t)
	behind, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	hangs := make(chan struct{})
	answer := sync.OnceFunc(func() { close(hangs) })
	psp := httputil.NewSingleHostReverseProxy(behind)
	psp.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	gate := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-hangs
		psp.ServeHTTP(w, r)
	}))
	t.Cleanup(gate.Close)
	t.Cleanup(answer)

	cfg := config.Worker{PSPURL: gate.URL, PSPAPIKey: apiKey, PSPConcurrency: 4, PSPKeyRetention: time.Hour, PSPInterval: 20 * time.Millisecond}
	c := newCards(cfg, db.Pool(t, "worker"), prometheus.NewRegistry(), newStallOf("psp", time.Second), slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.worker.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		answer()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	c.stall.isReady(t, c.measure) // nothing waits

	s.byCard(t, 2)
	c.stall.isReady(t, c.measure, "psp is stalled: work waits and none has ended for ", "psp breaker: closed")
	answer()
	c.stall.isReady(t, c.measure)
	testenv.Eventually(t, soon, func() error {
		if n := s.count(t, `SELECT count(*) FROM payments WHERE status = 'completed' AND version = 2`); n != 2 {
			return fmt.Errorf("%d are charged", n)
		}
		return nil
	})
}

// TestSweepThatHangsIsAStall: what is over keeps its hold, until a sweep comes to its end.
func TestSweepThatHangsIsAStall(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	s := newShop(t, db)
	worker := db.Pool(t, "worker")
	goOn := make(chan struct{})
	sweep := sync.OnceFunc(func() { close(goOn) })
	e := expiryOf(func(ctx context.Context, limit int) (int, error) {
		<-goOn // whatever becomes of the context
		return (&payments.Processor{DB: worker}).ExpireBatch(context.WithoutCancel(ctx), limit)
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.run(ctx) }()
	t.Cleanup(func() {
		stop()
		sweep()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	o := &overdue{db: worker, metrics: telemetry.NewWorker(prometheus.NewRegistry()), stall: newStallOf("expiry", time.Second)}
	o.stall.isReady(t, o.measure) // nothing is over

	s.authorize(t, 3)
	o.stall.isReady(t, o.measure, "expiry is stalled", "the first authorization was over at 20")
	sweep()
	o.stall.isReady(t, o.measure)
	s.released(t)
}
