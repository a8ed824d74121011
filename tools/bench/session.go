package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/process"
)

// session is one API process on one database. What is measured in it is checked at its end.
type session struct {
	*intakeBench
	group bool
	api   *process.Process
	paid  []uuid.UUID // in the last stretch
	wrote []int       // rows that there must be, in the order of selectBooks

	charged []invariant.PSPEntry // the PSP's books; nil: there is none
}

// session starts the API, lets do measure, stops the API and checks the books.
func (b *intakeBench) session(
	ctx context.Context, to scenario, database string, do func(*session) error,
) error {
	env := []string{
		"HTTP_ADDR=127.0.0.1:0", "DATABASE_URL=" + b.postgres.URL("api_write", database),
		"DATABASE_READ_URL=" + b.postgres.URL("api_read", database),
	}
	// Nothing but the flood reaches the share of a tenant.
	if !to.limits {
		env = append(env, fmt.Sprintf("TENANT_MAX=%d", max(300, b.connections)))
	}
	// Last, so that it holds whatever -api says.
	env = append(env, b.variables...)
	if !to.group {
		env = append(env, "BATCH_MAX=1", fmt.Sprintf("COMMITTERS=%d", b.pool),
			fmt.Sprintf("DATABASE_POOL=%d", b.pool))
	}

	before, err := countBooks(ctx, b.owner(database))
	if err != nil {
		return err
	}

	s := &session{intakeBench: b, group: to.group, wrote: make([]int, 4)}
	if s.api, err = process.Start(ctx, b.dir, "api", env...); err != nil {
		return err
	}
	defer os.Remove(filepath.Join(b.dir, "api.log")) // a line for each request
	defer s.api.Stop()

	if err := do(s); err != nil {
		return err
	}

	s.api.Stop()
	return checkBooks(ctx, b.owner(database), before, s.wrote, s.charged)
}

// measure sends a stretch of load. Costs are for each request.
func (s *session) measure(ctx context.Context, st stretch) (measured, error) {
	l, wrote := s.loadOf(st)

	noise, ofNoise := &result{}, wrote
	var noiseErr error
	var flood sync.WaitGroup
	if st.beside > 0 {
		cards := l
		cards.cards, cards.rate, cards.connections, ofNoise = true, st.beside, quietConnections, ofCard
		flood.Go(func() { noise, noiseErr = cards.run(ctx, func(func()) {}) })
	}
	if st.quiet {
		l.window = l.window * 3 / 2
		loud := l
		loud.connections, loud.refusals = floodConnections, true
		if st.flood {
			flood.Go(func() { noise, noiseErr = loud.run(ctx, func(func()) {}) })
		}
		l.payments = newPayments(s.neighbour, false)
		l.connections, l.rate = quietConnections, quietRate
	}

	var spent cost
	var costErr error
	t, err := l.run(ctx, func(wait func()) {
		spent, costErr = s.cost(ctx, s.api, func() error { wait(); return nil })
	})
	flood.Wait()
	// Count first answers even if something was wrong: the books are checked against them.
	s.paid = t.keys
	s.count(wrote, len(t.keys))
	s.count(ofNoise, len(noise.keys))

	err = errors.Join(err, noiseErr, t.err(), noise.err(), costErr)
	switch {
	case err != nil:
		return nil, err
	case t.latencies.TotalCount() == 0:
		return nil, errors.New("no request was answered")
	case st.flood && noise.refused == 0:
		return nil, errors.New("nothing was refused: it is no flood")
	}

	m, err := figuresOf(t, spent, l.window)
	if err != nil {
		return nil, err
	}
	if s.group {
		s.peak = max(s.peak, spent.peak)
	}
	s.Say("%s: %.0f requests/s, p50 %.2f ms, p99 %.1f ms; log %.0f B, Postgres %.0f µs each", st.name,
		m["per_s"], m["p50_ms"], m["p99_ms"], m["wal_bytes"], m["postgres_us"])
	s.figures.add(st.name, m, "")
	return m, nil
}

// loadOf returns the load of a stretch, and what each of its requests writes.
func (s *session) loadOf(st stretch) (l load, wrote []int) {
	l = load{
		dial:     func() (net.Conn, error) { return net.Dial("tcp", s.api.Addr) },
		payments: newPayments(s.shop, st.hot), connections: st.connections,
		warmup: st.warm, window: s.window(), pause: pause, pairs: st.pairs,
	}
	if st.connections == 0 {
		l.connections = s.connections
	}
	if st.open {
		l.rate = s.rate
	}
	if st.replay {
		l.replay = s.paid
	}

	switch {
	case st.cards:
		l.cards, l.rate = true, steadyCards
		return l, ofCard
	case st.pairs:
		return l, ofPair
	case st.refunds:
		l.refunds = s.paid
		return l, ofRefund
	}
	return l, ofPayment
}

// figuresOf returns what was seen in the window, by the clients and by the API's own metrics.
func figuresOf(t *result, spent cost, window time.Duration) (measured, error) {
	claims, claimsErr := spent.histogram("idempotency_claim_seconds")
	batches, batchesErr := spent.histogram("commit_batch_requests")
	if err := errors.Join(claimsErr, batchesErr); err != nil {
		return nil, err
	}

	// The counters are read at some milliseconds' distance from the edges of the window.
	rate := float64(t.latencies.TotalCount()) / window.Seconds()
	requests := rate * spent.seconds
	return measured{
		"per_s": rate, "p50_ms": t.latencies.Millis(50), "p99_ms": t.latencies.Millis(99),
		"api_us": 1e6 * spent.program / requests, "postgres_us": 1e6 * spent.postgres / requests,
		"cpu_us":       1e6 * (spent.program + spent.postgres) / requests,
		"generator_us": 1e6 * spent.own / requests, "wal_bytes": spent.wal / requests,
		"claim_p50_ms": 1000 * claims.atMost(.5), "claim_p99_ms": 1000 * claims.atMost(.99),
		"batch": batches.mean(),
	}, nil
}
