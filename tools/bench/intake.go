package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/traffic"
	"github.com/oncepay/oncepay/tools/rig"
)

// scenario is an API of its own on a fresh database, and the loads it gets one after the other.
type scenario struct {
	group     bool // group commit; else BATCH_MAX=1 with the best pool
	limits    bool // the API's own limits for a tenant; else none is reached
	stretches []stretch
}

// stretch is a load whose figures begin with its name.
type stretch struct {
	name        string
	connections int  // 0: those of the flags
	open        bool // open loop at the rate of the flags
	replay      bool // repeat what the stretch before has paid
	hot         bool // all to one account
	pairs       bool // authorize and capture
	refunds     bool // of what the stretch before has captured
	quiet       bool // a second tenant that sends little
	flood       bool // beside it, the first tenant sends all it can
	warm        time.Duration
}

const (
	warm             = time.Second
	floodConnections = 512 // more than a tenant's share
	quietRate        = 50  // nothing beside the flood, and enough for a p99
	quietConnections = 32
)

// scenarios are one round. What is compared is measured one right after the other.
var scenarios = []scenario{
	{stretches: []stretch{{name: "single"}}},
	{group: true, stretches: []stretch{{name: "group"}, {name: "replay", replay: true}}},
	{stretches: []stretch{
		{name: "single_pairs", pairs: true}, {name: "single_refunds", refunds: true},
	}},
	{group: true, stretches: []stretch{
		{name: "group_pairs", pairs: true}, {name: "group_refunds", refunds: true},
	}},
	{stretches: []stretch{{name: "single_1conn", connections: 1}}},
	{group: true, stretches: []stretch{{name: "group_1conn", connections: 1}}},
	{stretches: []stretch{{name: "open_single", open: true}}},
	{group: true, stretches: []stretch{
		{name: "open_group", open: true}, {name: "open_replay", open: true, replay: true},
	}},
	{group: true, limits: true, stretches: []stretch{
		{name: "flood_alone", quiet: true}, {name: "flood", quiet: true, flood: true},
	}},
	{group: true, stretches: []stretch{{name: "hot", hot: true}}},
}

// smoke is a round of a smoke run.
var smoke = []scenario{
	{stretches: []stretch{{name: "single"}}}, {group: true, stretches: []stretch{{name: "group"}}},
}

// intakeBench is one run of intake.
type intakeBench struct {
	*bench
	shop, neighbour traffic.Seed
	pool            int     // best for BATCH_MAX=1
	peak            float64 // memory of the API with group commit, MiB
}

// intake is the benchmark from top to bottom.
func intake(ctx context.Context, o options, stdout io.Writer) (err error) {
	started, err := start(ctx, o, stdout, "api", "oncepay")
	defer func() { err = errors.Join(err, started.stop()) }()
	if err != nil {
		return err
	}

	b := &intakeBench{bench: started}
	b.Say("%s", b.machine)
	b.Say("opening %d accounts", b.accounts)
	// Both tenants are in the database that each measurement copies.
	if b.shop, err = b.seed(ctx, tenant, b.accounts); err != nil {
		return err
	}

	if b.neighbour, err = b.seed(ctx, tenant+"-neighbour", 100); err != nil {
		return err
	}
	if err := rig.Execute(ctx, b.owner(template), `VACUUM ANALYZE`); err != nil {
		return err
	}

	if b.contended {
		return b.contend(ctx)
	}

	list := smoke
	if b.pool = 16; !b.smoke {
		list = scenarios
		if err := b.findPool(ctx); err != nil {
			return err
		}
	}

	for round := range b.rounds {
		for _, s := range list {
			if _, err := b.run(ctx, s); err != nil {
				return fmt.Errorf("round %d: %w", round+1, err)
			}
		}
	}

	if b.stored > 0 {
		if err := b.measureStored(ctx); err != nil {
			return err
		}
	}

	b.figures.add("peak", measured{"rss_mib": b.peak}, "")
	b.report()
	ratio := median(b.figures.values(row{of: "group_per_s / single_per_s"}, ""))
	if b.smoke && !(ratio >= 2) {
		return fmt.Errorf("group commit is only %.2f times as fast: something is broken", ratio)
	}

	return nil
}

const (
	tenant = "bench"
	funds  = "1000000000000" // of each account: more than any run moves
)

// seed opens accounts in the database that is copied.
func (b *intakeBench) seed(ctx context.Context, name string, accounts int) (traffic.Seed, error) {
	return rig.Seed(ctx, b.dir, b.owner(template), []string{
		"seed", "--tenant", name, "--client", "load", "--currency", "USD",
		"--accounts", strconv.Itoa(accounts), "--fund", funds, "--json",
	})
}

// findPool tries how many connections BATCH_MAX=1 needs: it is compared at its best.
func (b *intakeBench) findPool(ctx context.Context) error {
	best, chosen := 0.0, 0
	for _, b.pool = range []int{4, 8, 16, 32, 64} {
		name := fmt.Sprintf("pool of %d", b.pool)
		m, err := b.run(ctx, scenario{stretches: []stretch{{name: name}}})
		if err != nil {
			return err
		}

		if m["per_s"] > best {
			best, chosen = m["per_s"], b.pool
		}
	}

	// The open loop must leave BATCH_MAX=1 room, or it measures a queue.
	b.pool = chosen
	b.Say("the best pool for BATCH_MAX=1 has %d connections", chosen)
	if b.rate == 0 {
		b.rate = int(best / 2)
	}
	return nil
}

// run measures a scenario and returns its last stretch.
func (b *intakeBench) run(ctx context.Context, s scenario) (m measured, err error) {
	database, drop, err := b.fresh(ctx)
	if err != nil {
		return nil, err
	}
	defer drop()

	err = b.session(ctx, s, database, func(api *session) error {
		for _, st := range s.stretches {
			st.warm = warm
			if m, err = api.measure(ctx, st); err != nil {
				return fmt.Errorf("%s: %w", st.name, err)
			}
		}

		return nil
	})
	return m, err
}

// session is one API process on one database. What is measured in it is checked at its end.
type session struct {
	*intakeBench
	group bool
	api   *process.Process
	paid  []uuid.UUID // in the last stretch
	wrote []int       // rows that there must be, in the order of selectBooks
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
	return checkBooks(ctx, b.owner(database), before, s.wrote)
}

// measure sends a stretch of load. Costs are for each request.
func (s *session) measure(ctx context.Context, st stretch) (measured, error) {
	l := load{
		dial:     func() (net.Conn, error) { return net.Dial("tcp", s.api.Addr) },
		payments: newPayments(s.shop, st.hot), connections: st.connections,
		warmup: st.warm, window: s.window(), pause: pause,
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
	wrote := ofPayment
	switch l.pairs = st.pairs; {
	case st.pairs:
		wrote = ofPair
	case st.refunds:
		l.refunds, wrote = s.paid, ofRefund
	}

	noise := &result{}
	var noiseErr error
	var flood sync.WaitGroup
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
	s.count(wrote, len(t.keys)+len(noise.keys))

	err = errors.Join(err, noiseErr, t.err(), noise.err(), costErr)
	n := float64(t.latencies.TotalCount())
	switch {
	case err != nil:
		return nil, err
	case n == 0:
		return nil, errors.New("no request was answered")
	case st.flood && noise.refused == 0:
		return nil, errors.New("nothing was refused: it is no flood")
	}

	// What the API counted in the window.
	claims, claimsErr := spent.histogram("idempotency_claim_seconds")
	batches, batchesErr := spent.histogram("commit_batch_requests")
	if err := errors.Join(claimsErr, batchesErr); err != nil {
		return nil, err
	}

	// The counters are read at some milliseconds' distance from the edges of the window.
	requests := n / l.window.Seconds() * spent.seconds
	m := measured{
		"per_s": n / l.window.Seconds(), "p50_ms": t.latencies.Millis(50), "p99_ms": t.latencies.Millis(99),
		"api_us": 1e6 * spent.program / requests, "postgres_us": 1e6 * spent.postgres / requests,
		"cpu_us":       1e6 * (spent.program + spent.postgres) / requests,
		"generator_us": 1e6 * spent.own / requests, "wal_bytes": spent.wal / requests,
		"claim_p50_ms": 1000 * claims.atMost(.5), "claim_p99_ms": 1000 * claims.atMost(.99),
		"batch": batches.mean(),
	}
	if s.group {
		s.peak = max(s.peak, spent.peak)
	}
	s.Say("%s: %.0f requests/s, p50 %.2f ms, p99 %.1f ms; log %.0f B, Postgres %.0f µs each", st.name,
		m["per_s"], m["p50_ms"], m["p99_ms"], m["wal_bytes"], m["postgres_us"])
	s.figures.add(st.name, m, "")
	return m, nil
}

// What each leaves behind: payments, keys, events and ledger entries.
var (
	ofPayment = []int{1, 1, 1, 2}
	ofHold    = []int{1, 1, 1, 0}
	ofCapture = []int{0, 1, 1, 2}
	ofPair    = []int{1, 2, 2, 2}
	ofRefund  = []int{0, 1, 1, 2}
	ofCancel  = []int{0, 1, 1, 0}
	ofExpiry  = []int{0, 0, 1, 0}
	ofRefusal = []int{0, 1, 0, 0}
)

// count adds what n of them have written.
func (s *session) count(each []int, n int) {
	for i := range each {
		s.wrote[i] += n * each[i]
	}
}

const selectBooks = `
SELECT ARRAY[(SELECT count(*) FROM payments), (SELECT count(*) FROM idempotency_keys),
  (SELECT count(*) FROM outbox_events), (SELECT count(*) FROM ledger_entries)]`

func countBooks(ctx context.Context, url string) ([]int, error) {
	return rig.Query[[]int](ctx, url, selectBooks)
}

// checkBooks proves a rate: since before, there are the rows that belong to the first answers, and
// the tables agree with each other.
func checkBooks(ctx context.Context, url string, before, wrote []int) error {
	books, err := countBooks(ctx, url)
	if err != nil {
		return err
	}
	for i := range books {
		books[i] -= before[i]
	}

	var wrong error
	if !slices.Equal(books, wrote) {
		wrong = fmt.Errorf("the books do not balance: by the answers there are %v payments, keys, events "+
			"and entries, but there are %v", wrote, books)
	}

	db, err := pgxpool.New(ctx, url)
	if err != nil {
		return fmt.Errorf("check the books: %w", err)
	}
	defer db.Close()
	// What was just written is not in the statistics, autovacuum is off, and a join planned by
	// wrong numbers takes hours.
	if _, err := db.Exec(ctx, `ANALYZE`); err != nil {
		return fmt.Errorf("check the books: %w", err)
	}

	// Without topics: there is no relay here.
	report, err := invariant.Check(ctx, invariant.Sources{DB: db})
	for name, n := range report.Wrong() {
		wrong = errors.Join(wrong, fmt.Errorf("the books do not balance: %d %s: %v",
			n, name, report.Line(name).Examples))
	}
	return errors.Join(wrong, err)
}

// report prints the table and, as the last line, the JSON.
func (b *intakeBench) report() {
	fmt.Fprintf(b, "\n%s, after: %s\n", b.machine, loadAverage())
	fmt.Fprintf(b, "%d connections, %d accounts, BATCH_MAX=1 with DATABASE_POOL=%d, %d rounds of %d s, "+
		"open loop %d/s %s\n", b.connections, b.accounts, b.pool, b.rounds, b.seconds, b.rate,
		strings.Join(b.variables, " "))

	members := map[string]any{
		"rounds": b.rounds, "pool": b.pool, "rate": b.rate, "load_average": loadAverage(),
	}
	b.figures.show(b, intakeTable, "", members)
	writeJSON(b, members)
}
