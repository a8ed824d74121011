package psp_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/fakepsp"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/internal/psp"
	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/test/pgproxy"
)

const soon = 60 * time.Second

// The steps of an operation at which something can go wrong.
const (
	claiming  = "claiming, before COMMIT"
	claimed   = "claimed, after COMMIT"
	calling   = "calling, before the PSP executes"
	executed  = "calling, after the PSP executed"
	recording = "recording, before COMMIT"
	recorded  = "recorded, after COMMIT"
)

// What goes wrong there.
const (
	kill    = "kill -9"
	lose    = "reply lost" // of the PSP, or of COMMIT; before it: the request
	failure = "error 500"
	stall   = "stall beyond the timeout"
	webhook = "webhook first"
	twice   = "two workers at once"
)

// TestEveryStep: whatever goes wrong at whatever step, a card is charged once and refunded once, and the books of both sides agree.
func TestEveryStep(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		step     string
		troubles []string
	}{
		{claiming, []string{kill, lose, stall, twice}},
		{claimed, []string{kill, lose, twice}},
		{calling, []string{kill, lose, failure, stall, twice}},
		{executed, []string{kill, lose, failure, stall, webhook, twice}},
		{recording, []string{kill, lose, stall, webhook, twice}},
		{recorded, []string{kill, lose, webhook, twice}},
	} {
		for _, trouble := range c.troubles {
			t.Run(c.step+"/"+trouble, func(t *testing.T) {
				t.Parallel()
				s := newScene(t)
				s.step, s.trouble = c.step, trouble

				payment := s.pay(t, 2500)
				s.settle(t, payments.Charge)
				s.refund(t, payment, 700)
				s.settle(t, payments.RefundCharge)

				s.wantOnce(t, payment, 2500, 700)
			})
		}
	}
}

// scene is a tenant with cards, a PSP, and workers whose way to both meets one trouble at one step.
type scene struct {
	db       *testenv.DB
	owner    *pgxpool.Pool
	intake   *payments.Processor
	settler  *payments.Processor // brings the webhooks
	tenant   uuid.UUID
	clearing uuid.UUID
	shop     uuid.UUID

	books          *fakepsp.PSP
	url            string
	claims, writes *pgproxy.Proxy // what a worker claims and records through

	step, trouble string
	armed         atomic.Bool // until the trouble has come
	happened      chan struct{}
	victim        chan *exec.Cmd // to be killed
}

func newScene(t testing.TB) *scene {
	t.Helper()
	db := testenv.Database(t)
	s := &scene{db: db, owner: db.Pool(t, ""), tenant: uuid.New(), victim: make(chan *exec.Cmd, 1)}
	s.intake = &payments.Processor{
		DB: db.Pool(t, "api_write"), Retention: idempotency.DefaultRetention,
		Render: func(o payments.Outcome) idempotency.Response {
			return idempotency.Response{Status: 201, ContentType: "application/json", Body: o.JSON}
		},
	}
	s.settler = &payments.Processor{DB: s.intake.DB}
	s.execute(t, payments.CreateAccount{Kind: payments.Clearing, Currency: "USD"})
	s.execute(t, payments.CreateAccount{Kind: payments.Customer, Currency: "USD"})
	s.scan(t, `SELECT id FROM accounts WHERE kind = 'clearing'`, &s.clearing)
	s.scan(t, `SELECT id FROM accounts WHERE kind = 'customer'`, &s.shop)

	books, err := fakepsp.Open(t.TempDir(), fakepsp.Options{APIKey: apiKey})
	if err != nil {
		t.Fatal(err)
	}
	s.books = books
	server := httptest.NewServer(http.HandlerFunc(s.serve))
	s.url = server.URL
	t.Cleanup(func() {
		books.Drain()
		server.CloseClientConnections()
		server.Close()
		if err := books.Close(); err != nil {
			t.Error(err)
		}
	})

	s.claims = pgproxy.Start(t, db.URL, func(int, int) pgproxy.Fate { return s.commit(claiming, claimed) })
	s.writes = pgproxy.Start(t, db.URL, func(int, int) pgproxy.Fate { return s.commit(recording, recorded) })
	return s
}

func (s *scene) execute(t testing.TB, c payments.Command) {
	t.Helper()
	key := uuid.NewString()
	as, err := s.intake.Process(context.Background(), []payments.Request{{
		Request: idempotency.Request{TenantID: s.tenant, ClientID: s.tenant, Key: key, Fingerprint: idempotency.NewFingerprint(s.tenant, "POST", "/x", nil, []byte(key))},
		Method:  "POST", Route: "/x", Command: c,
	}})
	if err != nil || as[0].State != idempotency.New || len(as[0].Response.Body) == 0 {
		t.Fatalf("%+v: %+v, %v", c, as, err)
	}
}

func (s *scene) pay(t *testing.T, amount int64) (payment uuid.UUID) {
	t.Helper()
	s.execute(t, payments.CreatePayment{AmountMinor: amount, Currency: "USD", Card: "tok_visa", DestinationAccount: s.shop})
	s.scan(t, `SELECT id FROM payments ORDER BY id DESC LIMIT 1`, &payment)
	return payment
}

func (s *scene) refund(t *testing.T, payment uuid.UUID, amount int64) {
	t.Helper()
	s.execute(t, payments.RefundPayment{Target: payments.Target{PaymentID: payment}, AmountMinor: amount})
}

func (s *scene) scan(t testing.TB, sql string, to ...any) {
	t.Helper()
	if err := s.owner.QueryRow(context.Background(), sql).Scan(to...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// settle lets workers execute the operation that is due, with the trouble on their way.
func (s *scene) settle(t *testing.T, kind payments.OperationKind) {
	t.Helper()
	s.happened = make(chan struct{})
	s.armed.Store(true)

	ctx, stop := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	work := func(claims, records string, lease, call time.Duration) {
		workers.Go(func() {
			if err := run(ctx, claims, records, s.url, lease, call); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		})
	}
	direct, claims, records := s.db.URLAs("worker"), s.claims.URL(s.db.URLAs("worker")), s.writes.URL(s.db.URLAs("worker"))

	var victim *exec.Cmd
	switch s.trouble {
	case kill:
		victim = s.startProcess(t, claims, records)
	case twice: // each call takes longer than the lease
		work(claims, records, 300*time.Millisecond, 5*time.Second)
		work(claims, records, 300*time.Millisecond, 5*time.Second)
	default:
		work(claims, records, time.Second, 500*time.Millisecond)
	}

	select {
	case <-s.happened:
	case <-time.After(soon):
		t.Fatal("the worker did not come to the step")
	}
	if victim != nil {
		_ = victim.Wait() // killed: that is no success
		work(direct, direct, time.Second, 5*time.Second)
	}

	testenv.Eventually(t, soon, func() error {
		var left int
		var state, detail string
		s.scan(t, `SELECT count(*) FILTER (WHERE ended_at IS NULL), coalesce(min(state), ''), coalesce(min(last_error), '') FROM psp_operations WHERE kind = '`+string(kind)+`'`, &left, &state, &detail)
		if left > 0 {
			return fmt.Errorf("it is %s (%s)", state, detail)
		}
		return nil
	})
	if s.trouble == webhook {
		s.bring(true) // it comes late as well
	}
	stop()
	s.claims.Release()
	s.writes.Release()
	workers.Wait()
}

// strike reports whether it is this step's turn, once for each operation, and kills who is to be killed.
func (s *scene) strike(step string) bool {
	if s.step != step || !s.armed.CompareAndSwap(true, false) {
		return false
	}
	if s.trouble == kill {
		_ = (<-s.victim).Process.Kill() // it runs: it just sent something
	}
	close(s.happened)
	return true
}

// commit decides the fate of a COMMIT. Of those of claims only the one counts that has an operation.
func (s *scene) commit(before, after string) pgproxy.Fate {
	switch {
	case s.strike(before):
		switch s.trouble {
		case stall, twice:
			return pgproxy.Stall
		case webhook:
			s.bring(false)
			return pgproxy.Pass
		}
		return pgproxy.LoseRequest
	case s.strike(after):
		if s.trouble == webhook {
			return pgproxy.Pass // settle brings it
		}
		return pgproxy.LoseReply
	}
	return pgproxy.Pass
}

// serve is the PSP, with the trouble before or after it executes.
func (s *scene) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost && s.strike(calling) && s.meet(w, r) {
		return
	}
	answer := httptest.NewRecorder()
	s.books.ServeHTTP(answer, r)
	if r.Method == http.MethodPost && s.strike(executed) && s.meet(w, r) {
		return
	}
	for name, values := range answer.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// meet reports whether the call ends here.
func (s *scene) meet(w http.ResponseWriter, r *http.Request) bool {
	switch s.trouble {
	case kill, lose:
		panic(http.ErrAbortHandler) // closes the connection
	case failure:
		w.WriteHeader(http.StatusInternalServerError)
		return true
	case stall, twice: // for longer than a call, or a lease, may take; then the PSP goes on
		<-time.After(time.Second)
	case webhook:
		s.bring(true)
	}
	return false
}

// bring records what the PSP's books say, as its webhook does, whoever else is about to.
func (s *scene) bring(wait bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, r := range s.inBooks() {
			for {
				rs, err := s.settler.Record(context.Background(), []payments.Result{r})
				if err == nil && rs[0] != payments.Locked {
					break
				}
			}
		}
	}()
	if wait {
		<-done
	}
}

func (s *scene) inBooks() (rs []payments.Result) {
	b := s.books.Books()
	for _, c := range b.Charges {
		rs = append(rs, payments.Result{OperationID: uuid.MustParse(c.Metadata["operation_id"]), State: payments.Succeeded, AmountMinor: c.Amount, Currency: strings.ToUpper(c.Currency), Reference: c.ID})
	}
	for _, c := range b.Refunds {
		rs = append(rs, payments.Result{OperationID: uuid.MustParse(c.Metadata["operation_id"]), State: payments.Succeeded, AmountMinor: c.Amount, Currency: strings.ToUpper(c.Currency), Reference: c.ID})
	}
	return rs
}

// wantOnce checks the PSP's books, our ledger and our events against each other.
func (s *scene) wantOnce(t *testing.T, payment uuid.UUID, charged, refunded int64) {
	t.Helper()
	b := s.books.Books()
	if len(b.Charges) != 1 || len(b.Refunds) != 1 || b.Charges[0].Amount != charged || b.Refunds[0].Amount != refunded || b.Totals.OperationsTwice != 0 {
		t.Errorf("the PSP's books: %+v", b)
	}
	var got struct {
		Status            string
		Version           int64
		Refunded          int64
		Clearing, Shop    int64
		Held              int64
		Entries, Sum      int64
		Events            string
		References, Tries int64
	}
	s.scan(t, `SELECT status, version, refunded_minor FROM payments WHERE id = '`+payment.String()+`'`, &got.Status, &got.Version, &got.Refunded)
	s.scan(t, `SELECT balance_minor FROM accounts WHERE kind = 'clearing'`, &got.Clearing)
	s.scan(t, `SELECT balance_minor, held_minor FROM accounts WHERE kind = 'customer'`, &got.Shop, &got.Held)
	s.scan(t, `SELECT count(*), sum(amount_minor)::bigint FROM ledger_entries`, &got.Entries, &got.Sum)
	s.scan(t, `SELECT string_agg(event_type, ' ' ORDER BY aggregate_version) FROM outbox_events WHERE aggregate_type = 'payments'`, &got.Events)
	s.scan(t, `SELECT count(DISTINCT reference) FROM psp_operations WHERE state = 'succeeded' AND reference <> ''`, &got.References)
	want := got
	want.Status, want.Version, want.Refunded = "completed", 4, refunded
	want.Clearing, want.Shop, want.Held = refunded-charged, charged-refunded, 0
	want.Entries, want.Sum, want.References = 4, 0, 2
	want.Events = "payment.processing payment.completed refund.processing refund.completed"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// patient gives up a call after d, so that a test need not wait for 10 s.
type patient struct {
	*psp.Client
	d time.Duration
}

func (p patient) Charge(ctx context.Context, op payments.Operation) psp.Answer {
	ctx, cancel := context.WithTimeout(ctx, p.d)
	defer cancel()
	return p.Client.Charge(ctx, op)
}

func (p patient) Refund(ctx context.Context, op payments.Operation) psp.Answer {
	ctx, cancel := context.WithTimeout(ctx, p.d)
	defer cancel()
	return p.Client.Refund(ctx, op)
}

// open tries more than once: a pause of the machine may outlast an attempt.
func open(ctx context.Context, url string, log *slog.Logger) (pool *pgxpool.Pool, err error) {
	for range 5 {
		if pool, err = postgres.Open(ctx, url, "worker", 4, log); err == nil || ctx.Err() != nil {
			break
		}
	}
	return pool, err
}

// run runs a worker that claims and records through two ways, with a short lease.
func run(ctx context.Context, claims, records, url string, lease, call time.Duration) error {
	log := slog.New(slog.DiscardHandler)
	claimer, err := open(ctx, claims, log)
	if err != nil {
		return err
	}
	defer claimer.Close()
	recorder, err := open(ctx, records, log)
	if err != nil {
		return err
	}
	defer recorder.Close()

	c, r := &payments.Processor{DB: claimer}, &payments.Processor{DB: recorder}
	w := &psp.Worker{
		Claim: func(ctx context.Context, limit int, _ time.Duration) ([]payments.Operation, error) {
			return c.ClaimOperations(ctx, limit, lease)
		},
		Record:       r.Record,
		Provider:     psp.NewBreaker(patient{psp.NewClient(url, apiKey, 8), call}, func(string) {}),
		KeyRetention: 24 * time.Hour, Concurrency: 8, Interval: 10 * time.Millisecond,
		Log: log, Observe: silent,
	}
	return w.Run(ctx)
}

var silent = psp.Observer{
	FirstCall: func(time.Duration) {}, InFlight: func(int) {},
	Begin: func(ctx context.Context, _ payments.Operation) context.Context { return ctx },
	Call: func(ctx context.Context, _ string, _ payments.Operation) (context.Context, func(psp.Outcome)) {
		return ctx, func(psp.Outcome) {}
	},
	Recorded: func(payments.OperationKind, payments.OperationState, payments.Recorded) {}, Conflict: func(payments.OperationKind) {},
}

// startProcess runs a worker as a process, which a test can kill as a crash would.
func (s *scene) startProcess(t *testing.T, claims, records string) *exec.Cmd {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "PSP_TEST_WORKER="+strings.Join([]string{claims, records, s.url}, " "))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	s.victim <- cmd
	return cmd
}

// TestMain runs the tests, or a worker for one of them.
func TestMain(m *testing.M) {
	if worker := strings.Fields(os.Getenv("PSP_TEST_WORKER")); len(worker) == 3 {
		err := run(context.Background(), worker[0], worker[1], worker[2], time.Second, 5*time.Second)
		fmt.Fprintln(os.Stderr, errors.Join(err, errors.New("the worker has ended by itself")))
		os.Exit(1)
	}

	// They wait for leases and timeouts more than they work.
	flag.Parse()
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
