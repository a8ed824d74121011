package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/groupcommit"
	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/telemetry"
	"github.com/oncepay/oncepay/internal/testenv"
)

// held is a database that begins no transaction while a test holds the gate.
type held struct {
	*pgxpool.Pool
	gate sync.RWMutex
}

func (h *held) BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error) {
	h.gate.RLock()
	defer h.gate.RUnlock()
	return h.Pool.BeginTx(ctx, o)
}

// sent is a request and what became of it.
type sent struct {
	payments.Request
	answer idempotency.Answer
	err    error
}

// batch commits requests to open accounts of these names together.
func batch(t *testing.T, p *payments.Processor, cfg config.API, names ...string) []*sent {
	t.Helper()
	return loggedBatch(t, p, cfg, slog.New(slog.DiscardHandler), names...)
}

func loggedBatch(t *testing.T, p *payments.Processor, cfg config.API, log *slog.Logger, names ...string) []*sent {
	t.Helper()
	db := p.DB.(*held)
	g := newGroup(p, cfg, telemetry.NewAPI(telemetry.NewRegistry()), log)
	tenant := uuid.New()
	var all []*sent
	db.gate.Lock()
	for _, name := range names {
		command, _ := json.Marshal(name)
		all = append(all, &sent{Request: payments.Request{
			Request: idempotency.Request{
				TenantID: tenant, ClientID: tenant, Key: name, RequestID: uuid.NewString(),
				Fingerprint: idempotency.NewFingerprint(tenant, "POST", "/x", nil, command),
			},
			Command: payments.CreateAccount{Kind: payments.Customer, Currency: "USD", Name: name},
		}})
	}
	var callers sync.WaitGroup
	for i, s := range all {
		callers.Go(func() { s.answer, s.err = g.Do(context.Background(), s.Request) })
		testenv.Eventually(t, 10*time.Second, func() error { // before Run everything waits
			if g.Waiting() != i+1 {
				return errors.New("it is not in the queue")
			}
			return nil
		})
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- g.Run(ctx) }()
	db.gate.Unlock()
	callers.Wait()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	return all
}

func newProcessor(t *testing.T, constraint string) (*payments.Processor, *pgxpool.Pool) {
	t.Helper()
	db := testenv.Database(t)
	owner := db.Pool(t, "")
	if constraint != "" {
		if _, err := owner.Exec(t.Context(), constraint); err != nil {
			t.Fatal(err)
		}
	}
	return &payments.Processor{DB: &held{Pool: db.Pool(t, "api_write")}, Retention: idempotency.DefaultRetention, Render: httpapi.Render}, owner
}

var grouped = config.API{Committers: 1, BatchMax: 100, DatabasePool: 4}

func TestRequestRefusedByDatabaseFailsAlone(t *testing.T) {
	t.Parallel()
	for code, constraint := range map[string]string{
		"23514": `ALTER TABLE accounts ADD CONSTRAINT for_this_test CHECK (name <> 'bad')`,
		"22012": `ALTER TABLE accounts ADD CONSTRAINT for_this_test CHECK (1 / (char_length(name) - 3) IS NOT NULL)`, // "bad" has three
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			p, owner := newProcessor(t, constraint)
			for _, s := range batch(t, p, grouped, "first", "bad", "last") {
				var e *pgconn.PgError
				switch {
				case s.Key != "bad" && (s.err != nil || s.answer.State != idempotency.New || s.answer.Response.Status != 201):
					t.Errorf("%s: %s %d %v", s.Key, s.answer.State, s.answer.Response.Status, s.err)
				case s.Key == "bad" && (!errors.As(s.err, &e) || e.Code != code):
					t.Errorf("%s: %d %v", s.Key, s.answer.Response.Status, s.err)
				}
			}
			wantAccounts(t, owner, 2)
		})
	}
}

func TestPanickingRequestFailsAlone(t *testing.T) {
	t.Parallel()
	p, owner := newProcessor(t, "")
	p.Render = func(o payments.Outcome) idempotency.Response {
		if o.Account.Name == "bad" {
			panic("cannot be rendered")
		}
		return httpapi.Render(o)
	}
	var log bytes.Buffer
	for _, s := range loggedBatch(t, p, grouped, slog.New(slog.NewTextHandler(&log, nil)), "first", "bad", "last") {
		var panicked *groupcommit.PanicError
		switch {
		case s.Key != "bad" && (s.err != nil || s.answer.State != idempotency.New || s.answer.Response.Status != 201):
			t.Errorf("%s: %s %d %v", s.Key, s.answer.State, s.answer.Response.Status, s.err)
		case s.Key == "bad" && !errors.As(s.err, &panicked):
			t.Errorf("%s: %d %v", s.Key, s.answer.Response.Status, s.err)
		}
	}
	if n := strings.Count(log.String(), "panic in a transaction"); n != 1 || !strings.Contains(log.String(), "cannot be rendered") {
		t.Errorf("the panic was logged %d times:\n%s", n, &log)
	}
	wantAccounts(t, owner, 2)
	if n := p.DB.(*held).Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections were not given back", n)
	}
}

func TestBatchMaxOneGivesEachRequestItsTransaction(t *testing.T) {
	t.Parallel()
	for batchMax, want := range map[int]int{100: 1, 1: 3} {
		p, owner := newProcessor(t, "")
		cfg := grouped
		cfg.BatchMax = batchMax
		for _, s := range batch(t, p, cfg, "a", "b", "c") {
			if s.err != nil || s.answer.Response.Status != 201 {
				t.Errorf("%s: %d %v", s.Key, s.answer.Response.Status, s.err)
			}
		}
		var n int
		if err := owner.QueryRow(t.Context(), `SELECT count(DISTINCT xmin::text) FROM accounts`).Scan(&n); err != nil || n != want {
			t.Errorf("BATCH_MAX=%d: %d transactions, want %d: %v", batchMax, n, want, err)
		}
	}
}

func TestOnlyDataErrorsSplitABatch(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{
		"22001": true, "22P02": true, "23505": true, "23514": true,
		"40001": false, "40P01": false, "55P03": false, "57014": false, "57P01": false, "53300": false, "08006": false, "": false, "22": false,
	} {
		err := errors.Join(&pgconn.PgError{Code: code})
		if got := payments.OneIsToBlame(err); got != want {
			t.Errorf("%q: %v", code, got)
		}
		if payments.OneIsToBlame(errors.Join(idempotency.ErrOutcomeUnknown, err)) {
			t.Errorf("%q: an unknown outcome is split", code)
		}
	}
	if !payments.OneIsToBlame(payments.ErrDamaged) || payments.OneIsToBlame(errors.Join(idempotency.ErrOutcomeUnknown, payments.ErrDamaged)) {
		t.Error("a payment without its account is not told apart")
	}
	if payments.OneIsToBlame(nil) || payments.OneIsToBlame(context.DeadlineExceeded) {
		t.Error("what is no answer of the server is split")
	}
}

func wantAccounts(t *testing.T, owner *pgxpool.Pool, want int) {
	t.Helper()
	var n int
	if err := owner.QueryRow(t.Context(), `SELECT count(*) FROM accounts`).Scan(&n); err != nil || n != want {
		t.Errorf("%d accounts, want %d: %v", n, want, err)
	}
}
