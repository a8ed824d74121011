package psp_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/fakepsp"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/internal/psp"
	"github.com/oncepay/oncepay/internal/testenv"
)

// BenchmarkCharges charges cards at a PSP that takes 50 ms, with 64 slots: all payments wait from the start (backlog), or come at 200 a
// second (steady). Reported: charges a second, and the median from an operation's creation to its call.
func BenchmarkCharges(b *testing.B) {
	b.Run("backlog", func(b *testing.B) { charges(b, 0) })
	b.Run("steady", func(b *testing.B) { charges(b, 200) })
}

func charges(b *testing.B, rate int) {
	s := newScene(b)
	if err := s.books.SetFaults(fakepsp.Faults{Latency: fakepsp.Duration(50 * time.Millisecond)}); err != nil {
		b.Fatal(err)
	}
	if rate == 0 {
		s.payMany(b, b.N)
	}

	var mu sync.Mutex
	var waits []time.Duration
	seen := silent
	seen.FirstCall = func(d time.Duration) { mu.Lock(); defer mu.Unlock(); waits = append(waits, d) }

	log := slog.New(slog.DiscardHandler)
	pool, err := postgres.Open(context.Background(), s.db.URLAs("worker"), "worker", 8, log)
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	p := &payments.Processor{DB: pool}
	w := &psp.Worker{
		Claim: p.ClaimOperations, Record: p.Record, Provider: psp.NewBreaker(psp.NewClient(s.url, apiKey, 64), func(string) {}),
		KeyRetention: 24 * time.Hour, Concurrency: 64, Interval: 20 * time.Millisecond, Log: log, Observe: seen,
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = w.Run(ctx) }) // it returns nil

	b.ResetTimer()
	if rate > 0 {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for range b.N {
			<-tick.C
			s.payMany(b, 1)
		}
	}
	testenv.Eventually(b, 2*time.Minute, func() error {
		if s.books.Totals().ChargesSucceeded < b.N {
			return errors.New("not all are charged")
		}
		return nil
	})
	b.StopTimer()
	stop()
	running.Wait()

	slices.Sort(waits)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "charges/s")
	b.ReportMetric(float64(waits[len(waits)/2].Microseconds())/1000, "ms-to-call-p50")
	b.ReportMetric(float64(waits[len(waits)*99/100].Microseconds())/1000, "ms-to-call-p99")
}

// payMany makes payments in batches, as the API does under load.
func (s *scene) payMany(b *testing.B, n int) {
	b.Helper()
	for ; n > 0; n -= 100 {
		var rs []payments.Request
		for range min(n, 100) {
			key := uuid.NewString()
			rs = append(rs, payments.Request{
				Request: idempotency.Request{TenantID: s.tenant, ClientID: s.tenant, Key: key, Fingerprint: idempotency.NewFingerprint(s.tenant, "POST", "/x", nil, []byte(key))},
				Method:  "POST", Route: "/x", Command: payments.CreatePayment{AmountMinor: 100, Currency: "USD", Card: "tok_visa", DestinationAccount: s.shop},
			})
		}
		if _, err := s.intake.Process(context.Background(), rs); err != nil {
			b.Fatal(err)
		}
	}
}
