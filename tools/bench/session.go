package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/process"
)

// setup is how the API runs in a session.
type setup struct {
	group    bool
	limits   bool      // the API's own against a tenant that floods
	pool     int       // with group off; with group on the API's default is right
	database *database // nil: a fresh one
	count    bool      // statements; costs a little
}

// session is one API process on one database. What is measured in it is checked at its end.
type session struct {
	b    *bench
	api  *process.Process
	conn *pgx.Conn // as owner, for what only the server knows
	role string    // what the API's statements run as; empty: they are not counted

	before books
	first  int // first answers so far
}

// session starts the API, lets do measure, stops the API and checks the books.
func (b *bench) session(ctx context.Context, to setup, do func(*session) error) (err error) {
	d := to.database
	if d == nil {
		made, err := b.server.fresh(ctx)
		if err != nil {
			return err
		}
		d = &made
		defer func() { err = errors.Join(err, b.server.release(context.WithoutCancel(ctx), made)) }()
	}
	s := &session{b: b}
	if to.count && b.server.statements {
		if err := b.server.execute(ctx, d.owner, `ALTER DATABASE `+d.name+` SET pg_stat_statements.track = 'all'`); err != nil {
			return err
		}
		s.role = "api_write"
	}
	if s.conn, err = connect(ctx, d.owner); err != nil {
		return err
	}
	defer s.conn.Close(context.WithoutCancel(ctx))
	if s.before, err = countAll(ctx, s.conn); err != nil {
		return err
	}
	if s.api, err = process.Start(ctx, b.dir, "api", b.environment(to, d)...); err != nil {
		return err
	}
	defer os.Remove(b.dir + "/api.log") // a line for each request
	defer s.api.Stop()
	if err := do(s); err != nil {
		return err
	}
	memory, err := peakMemory(s.api.Pid())
	if err != nil {
		return err
	}
	if to.group && !to.count {
		b.peak = max(b.peak, memory)
	}
	s.api.Stop()
	return errors.Join(checkBooks(ctx, s.conn, s.before, s.first), checkInvariants(ctx, d.owner))
}

func (b *bench) environment(to setup, d *database) []string {
	env := append([]string{"HTTP_ADDR=127.0.0.1:0"}, d.api...)
	if !to.limits { // they are not what is measured
		env = append(env, "TENANT_MAX="+strconv.Itoa(max(300, b.connections)))
	}

	env = append(env, b.api...)
	if !to.group { // last, so that it holds whatever -api says
		pool := strconv.Itoa(to.pool)
		env = append(env, "BATCH_MAX=1", "COMMITTERS="+pool, "DATABASE_POOL="+pool)
	}
	return env
}

// stretch is what is asked of the API.
type stretch struct {
	connections int
	rate        float64
	replay      []uuid.UUID
	hot         bool
	warm, long  time.Duration
	profile     string
}

// measured is what one stretch showed. Costs are for each request.
type measured struct {
	traffic
	perSecond                float64
	apiTime, dbTime, ownTime float64 // CPU, in microseconds; dbTime is NaN when the server is not ours
	wal                      float64 // bytes
	claims                   histogram
	batches                  histogram
	statements               float64 // for each batch; NaN: not counted
}

// snapshot is what counters say at a moment.
type snapshot struct {
	at              time.Time
	api, db, own    time.Duration
	wal             int64
	claims, batches histogram
}

// load is a stretch as one tenant's.
func (s *session) load(st stretch, from seed) load {
	return load{
		dial:     func() (net.Conn, error) { return net.Dial("tcp", s.api.Addr) },
		payments: newPayments(from.Token, from.ids(), st.hot || s.b.hot), connections: st.connections, rate: st.rate,
		duplicates: s.b.duplicates, replay: st.replay, warmup: st.warm, window: st.long, pause: pause,
	}
}

func (s *session) measure(ctx context.Context, st stretch) (m measured, err error) {
	l := s.load(st, s.b.server.seed)
	profiled := make(chan error, 1)
	go func() { profiled <- s.profile(ctx, st) }()
	calls, batches, err := s.counted(ctx)
	if err != nil {
		return m, err
	}
	var before, after snapshot
	var beforeErr, afterErr error
	t, err := l.run(ctx, func() { before, beforeErr = s.snapshot(ctx) }, func() { after, afterErr = s.snapshot(ctx) })
	s.first += t.first
	if err := errors.Join(err, <-profiled); err != nil {
		return m, err
	}
	if err := t.err(); err != nil {
		return m, err
	}
	if err := errors.Join(beforeErr, afterErr); err != nil {
		return m, err
	}
	if t.answered == 0 {
		return m, errors.New("no request was answered")
	}
	m = measured{traffic: t, perSecond: float64(t.answered) / st.long.Seconds(), claims: after.claims.since(before.claims), batches: after.batches.since(before.batches)}
	requests := m.perSecond * after.at.Sub(before.at).Seconds()
	each := func(from, to time.Duration) float64 { return float64((to - from).Microseconds()) / requests }
	m.apiTime, m.dbTime, m.ownTime = each(before.api, after.api), each(before.db, after.db), each(before.own, after.own)
	if s.b.server.own == nil {
		m.dbTime = math.NaN()
	}
	m.wal = float64(after.wal-before.wal) / requests
	callsAfter, batchesAfter, err := s.counted(ctx)
	m.statements = float64(callsAfter-calls) / (batchesAfter - batches) // nothing counted: NaN
	return m, err
}

const walWritten = `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`

func (s *session) snapshot(ctx context.Context) (n snapshot, err error) {
	text, err := scrape(ctx, s.api.Admin)
	if err != nil {
		return n, err
	}
	if n.claims, err = histogramOf(text, "idempotency_claim_seconds"); err != nil {
		return n, err
	}
	if n.batches, err = histogramOf(text, "commit_batch_requests"); err != nil {
		return n, err
	}
	if err := s.conn.QueryRow(ctx, walWritten).Scan(&n.wal); err != nil {
		return n, fmt.Errorf("read the position of the log: %w", err)
	}
	if n.api, err = processTime(s.api.Pid(), false); err != nil {
		return n, err
	}
	if n.db, err = s.b.server.time(); err != nil {
		return n, err
	}
	n.own, n.at = ownTime(), time.Now()
	return n, nil
}

const statementCalls = `
SELECT coalesce(sum(calls), 0)::bigint
FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid JOIN pg_roles r ON r.oid = s.userid
WHERE d.datname = current_database() AND r.rolname = $1`

// counted returns how many statements and batches there were so far, if statements are counted. They must be idle: the two counters are not read
// at the same moment.
func (s *session) counted(ctx context.Context) (calls int64, batches float64, err error) {
	if s.role == "" {
		return 0, 0, nil
	}
	text, err := scrape(ctx, s.api.Admin)
	if err != nil {
		return 0, 0, err
	}
	sizes, err := histogramOf(text, "commit_batch_requests")
	if err != nil {
		return 0, 0, err
	}
	if err := s.conn.QueryRow(ctx, statementCalls, s.role).Scan(&calls); err != nil {
		return 0, 0, fmt.Errorf("count statements: %w", err)
	}
	return calls, sizes.count(), nil
}

// profile writes a CPU profile of the API that lasts as long as the stretch, if one is wanted.
func (s *session) profile(ctx context.Context, st stretch) error {
	if st.profile == "" {
		return nil
	}
	address := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", s.api.Admin, int((st.warm + st.long).Seconds()))
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return fmt.Errorf("profile the API: %w", err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return fmt.Errorf("profile the API: %w", err)
	}
	defer response.Body.Close()
	file, err := os.Create(st.profile)
	if err != nil {
		return fmt.Errorf("profile the API: %w", err)
	}
	if _, err := io.Copy(file, response.Body); err != nil {
		return errors.Join(fmt.Errorf("profile the API: %w", err), file.Close())
	}
	return file.Close()
}
