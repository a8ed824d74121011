package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/test/pgproxy"
)

const soon = 30 * time.Second

// buffer is written by the program while the test reads.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// instance is one worker, run until the test ends.
type instance struct {
	log   buffer
	admin string // its private listener
	stop  func() // and wait
}

func start(t *testing.T, url string, more ...string) *instance {
	t.Helper()
	i := &instance{}
	env := map[string]string{"DATABASE_URL": url + "&statement_timeout=60s&idle_in_transaction_session_timeout=60s", "ADMIN_ADDR": "127.0.0.1:0", "EXPIRY_INTERVAL": "100ms", "WORKER_PARTS": "expiry"}
	for n := 0; n < len(more); n += 2 {
		env[more[n]] = more[n+1]
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		getenv := func(name string) string { return env[name] }
		err := run(ctx, getenv, &i.log)
		for tries := 1; err != nil && tries < 3 && process.WasLate(err.Error()); tries++ {
			err = run(ctx, getenv, &i.log)
		}
		done <- err
	}()
	i.stop = sync.OnceFunc(func() {
		stop()
		if err := <-done; err != nil || t.Failed() {
			t.Errorf("run: %v, log:\n%s", err, i.log.String())
		}
	})
	t.Cleanup(i.stop)
	testenv.Eventually(t, soon, func() error {
		for line := range strings.Lines(i.log.String()) {
			var l struct {
				Admin string `json:"admin_addr"`
			}
			if json.Unmarshal([]byte(line), &l) == nil && l.Admin != "" {
				i.admin = l.Admin
				return nil
			}
		}
		return errors.New("it did not start")
	})
	return i
}

func (i *instance) get(path string) (int, string, error) {
	response, err := http.Get("http://" + i.admin + path)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// shows says whether there is a line like each of these, which are regular expressions, in the metrics.
func (i *instance) shows(lines ...string) error {
	_, text, err := i.get("/metrics")
	for _, line := range lines {
		if err == nil && !regexp.MustCompile(`(?m)^`+line+`$`).MatchString(text) {
			err = fmt.Errorf("its metrics have no line %s:\n%s", line, text)
		}
	}
	return err
}

// shop authorizes payments from one account to another.
type shop struct {
	pool     *pgxpool.Pool // as its owner
	tenant   uuid.UUID
	accounts [2]uuid.UUID
}

func newShop(t *testing.T, db *testenv.DB) *shop {
	t.Helper()
	s := &shop{pool: db.Pool(t, ""), tenant: uuid.New()}
	system := s.execute(t, payments.CreateAccount{Kind: payments.System, Currency: "USD"})[0].Account.ID
	for i := range s.accounts {
		s.accounts[i] = s.execute(t, payments.CreateAccount{Kind: payments.Customer, Currency: "USD"})[0].Account.ID
		s.execute(t, payments.CreatePayment{AmountMinor: 1_000_000, Currency: "USD", SourceAccount: system, DestinationAccount: s.accounts[i], MayFund: true})
	}
	return s
}

func (s *shop) execute(t *testing.T, cs ...payments.Command) (outcomes []payments.Outcome) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
		var rs []payments.Request
		for _, c := range cs {
			rs = append(rs, payments.Request{At: time.Now().UTC(), Command: c, Request: idempotency.Request{TenantID: s.tenant, Key: uuid.NewString()}})
		}
		var err error
		outcomes, err = payments.Execute(t.Context(), tx, rs)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return outcomes
}

// authorize makes n authorizations that are over at once.
func (s *shop) authorize(t *testing.T, n int) {
	t.Helper()
	cs := make([]payments.Command, n)
	for i := range cs {
		cs[i] = payments.CreatePayment{AmountMinor: 10, Currency: "USD", SourceAccount: s.accounts[0], DestinationAccount: s.accounts[1], Authorization: time.Millisecond}
	}
	s.execute(t, cs...)
}

func (s *shop) count(t *testing.T, sql string) (n int) {
	t.Helper()
	if err := s.pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

const stillHeld = `SELECT count(*) FROM payments WHERE status = 'authorized'`

// released waits until no authorization is left.
func (s *shop) released(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, soon, func() error {
		if n := s.count(t, stillHeld); n > 0 {
			return fmt.Errorf("%d are authorized", n)
		}
		return nil
	})
}

func TestExpiredAuthorizationsAreReleased(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	s := newShop(t, db)
	s.authorize(t, 250) // two full batches and a part of one
	i := start(t, db.URLAs("worker"))
	testenv.Eventually(t, soon, func() error {
		return i.shows("expiry_payments_total 250", "expiry_batch_seconds_count 3", "expiry_oldest_overdue_seconds 0", "expiry_errors_total 0")
	})
	if n := s.count(t, `SELECT count(*) FROM payments WHERE status = 'expired' AND version = 2`); n != 250 {
		t.Errorf("%d are expired", n)
	}
	if n := s.count(t, `SELECT sum(held_minor) FROM accounts`); n != 0 {
		t.Errorf("%d are held", n)
	}
	if n := s.count(t, `SELECT count(DISTINCT aggregate_id) FROM outbox_events WHERE event_type = 'payment.expired'`); n != 250 {
		t.Errorf("%d have an event", n)
	}
	for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/metrics": 200} {
		if got, text, err := i.get(path); err != nil || got != want {
			t.Errorf("%s: %d %s %v", path, got, text, err)
		}
	}
	i.stop()
	if log := i.log.String(); strings.Contains(log, `"level":"WARN"`) || !strings.Contains(log, "worker stopped") {
		t.Error(log)
	}
}

// TestLockedAccountDelaysOnlyItsOwn: its authorizations are released when it is free, also while others end all the time, and the log has
// one line of it.
func TestLockedAccountDelaysOnlyItsOwn(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	s := newShop(t, db)
	s.authorize(t, 3)
	other := &shop{pool: s.pool, tenant: s.tenant, accounts: [2]uuid.UUID{
		s.execute(t, payments.CreateAccount{Kind: payments.Customer, Currency: "USD"})[0].Account.ID, s.execute(t, payments.CreateAccount{Kind: payments.Customer, Currency: "USD"})[0].Account.ID,
	}}
	if _, err := s.pool.Exec(t.Context(), `UPDATE accounts SET balance_minor = 1000000`); err != nil {
		t.Fatal(err)
	}
	other.authorize(t, 120)

	psql, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = psql.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := psql.Exec(t.Context(), `SELECT FROM accounts WHERE id = $1 FOR UPDATE`, s.accounts[0]); err != nil {
		t.Fatal(err)
	}

	i := start(t, db.URLAs("worker"))
	line := "account is locked by another session"
	for range 5 { // sweeps, in each of which something else ends
		testenv.Eventually(t, soon, func() error {
			if n := s.count(t, stillHeld); n != 3 {
				return fmt.Errorf("%d are authorized", n)
			}
			return i.shows(`expiry_oldest_overdue_seconds [0-9.]*[1-9][0-9.e-]*`)
		})
		other.authorize(t, 1)
	}
	if n := strings.Count(i.log.String(), line); n != 1 || !strings.Contains(i.log.String(), s.accounts[0].String()) {
		t.Errorf("%d lines name the account:\n%s", n, i.log.String())
	}
	if err := psql.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}

	stop := make(chan struct{})
	var ends sync.WaitGroup
	ends.Go(func() { // no sweep is empty
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				other.authorize(t, 1)
			}
		}
	})
	testenv.Eventually(t, soon, func() error {
		if n := s.count(t, `SELECT count(*) FROM payments WHERE status = 'expired' AND source_account = '`+s.accounts[0].String()+`'`); n != 3 {
			return fmt.Errorf("%d were released", n)
		}
		return nil
	})
	close(stop)
	ends.Wait()
}

// TestWorkerOutlivesItsDatabase: it waits the database out, says so, and goes on. The reply to the first COMMIT is lost as well.
func TestWorkerOutlivesItsDatabase(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	s := newShop(t, db)
	s.authorize(t, 5) // before it starts: the first COMMIT is theirs
	var commits atomic.Int64
	proxy := pgproxy.Start(t, db.URL, func(int, int) pgproxy.Fate {
		if commits.Add(1) == 1 {
			return pgproxy.LoseReply
		}
		return pgproxy.Pass
	})
	i := start(t, proxy.URL(db.URLAs("worker")))
	ready := func(want int) {
		t.Helper()
		testenv.Eventually(t, soon, func() error {
			got, text, err := i.get("/readyz")
			if err == nil && got != want {
				err = fmt.Errorf("readyz: %d %s", got, text)
			}
			return err
		})
	}
	s.released(t)
	testenv.Eventually(t, soon, func() error {
		return i.shows("expiry_oldest_overdue_seconds 0", "expiry_errors_total 0", "expiry_payments_total 0")
	})

	proxy.SetDown(true)
	s.authorize(t, 5)
	ready(http.StatusServiceUnavailable)
	testenv.Eventually(t, soon, func() error {
		if i.shows("expiry_oldest_overdue_seconds .*") == nil {
			return errors.New("it shows what it cannot know")
		}
		return i.shows("expiry_errors_total [1-9]")
	})
	proxy.SetDown(false)
	s.released(t)
	ready(http.StatusOK)
	testenv.Eventually(t, soon, func() error { return i.shows("expiry_oldest_overdue_seconds 0", "expiry_payments_total 5") })

	if n := s.count(t, `SELECT count(*) FROM outbox_events WHERE event_type = 'payment.expired'`); n != 10 {
		t.Errorf("%d events of 10 payments", n)
	}
	if log := i.log.String(); !strings.Contains(log, "authorizations not released, trying again") {
		t.Error(log)
	}
}

func TestWrongStart(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	for name, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"unknown part":  {map[string]string{"WORKER_PARTS": "expiry,nonsense"}, "WORKER_PARTS must be a list of all, psp, expiry, webhooks, separated by commas, for example WORKER_PARTS=all"},
		"no brokers":    {map[string]string{"WORKER_PARTS": "webhooks"}, "KAFKA_BROKERS is not set, for example KAFKA_BROKERS=kafka-1:9092,kafka-2:9092"},
		"too often":     {map[string]string{"EXPIRY_INTERVAL": "1ms"}, "EXPIRY_INTERVAL must be a duration from 100ms to 1m, for example EXPIRY_INTERVAL=1s"},
		"another role":  {map[string]string{"DATABASE_URL": db.URLAs("relay")}, "relay may not release authorizations: give DATABASE_URL a login with the role worker"},
		"no database":   {map[string]string{"DATABASE_URL": ""}, "DATABASE_URL is not set, for example DATABASE_URL=postgres://worker:secret@localhost:5432/oncepay"},
		"no PSP":        {map[string]string{"WORKER_PARTS": "psp"}, "PSP_URL is not set, for example PSP_URL=https://api.psp.example\nPSP_API_KEY is not set, for example PSP_API_KEY=sk_…, as the PSP shows it"},
		"wrong role":    {map[string]string{"WORKER_PARTS": "psp", "PSP_URL": "http://127.0.0.1:1", "PSP_API_KEY": "x", "DATABASE_URL": db.URLAs("relay")}, "relay may not settle payments by card: give DATABASE_URL a login with the role worker"},
		"reader's role": {map[string]string{"DATABASE_URL": db.URLAs("api_read")}, "api_read may not release authorizations: give DATABASE_URL a login with the role worker"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := map[string]string{"DATABASE_URL": db.URLAs("worker"), "ADMIN_ADDR": "127.0.0.1:0", "WORKER_PARTS": "expiry"}
			for k, v := range c.env {
				env[k] = v
			}
			ctx, cancel := context.WithTimeout(t.Context(), soon)
			defer cancel()
			if err := run(ctx, func(n string) string { return env[n] }, io.Discard); err == nil || err.Error() != c.want {
				t.Errorf("\n got %v\nwant %s", err, c.want)
			}
		})
	}
}
