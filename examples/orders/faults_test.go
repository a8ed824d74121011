package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/client"
	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/test/pgproxy"
)

// path is a way through the saga.
type path struct {
	name  string
	order string // body of POST /orders, for the customer's account
	// The order is canceled while this step is called.
	cancel string
	steps  []string // each with one COMMIT
	from   int      // the steps before it are tested on another path
	end    State
	cards  bool // the payments service takes a while
}

var paths = []path{{
	name: "sold", order: `{"item": "book", "quantity": 1, "account": %q}`, end: Confirmed,
	steps: []string{"reserve", "charge", "confirm"},
}, {
	name: "declined", order: `{"item": "yacht", "quantity": 1, "account": %q}`, end: Released,
	steps: []string{"reserve", "charge", "release"}, from: 1,
}, {
	name: "canceled", order: `{"item": "book", "quantity": 2, "account": %q}`, end: Released,
	cancel: "charge", steps: []string{"reserve", "charge", "confirm", "refund", "release"}, from: 2,
}, {
	name: "sold by card", order: `{"item": "book", "quantity": 1, "card": "tok_visa"}`, end: Confirmed, cards: true,
	steps: []string{"reserve", "charge", "await charge", "confirm"}, from: 1,
}, {
	name: "canceled by card", order: `{"item": "book", "quantity": 2, "card": "tok_visa"}`, end: Released, cards: true,
	cancel: "charge", steps: []string{"reserve", "charge", "await charge", "confirm", "refund", "await refund", "release"}, from: 4,
}}

// fault happens once, at one step.
type fault struct {
	name   string
	commit pgproxy.Fate
	call   func(c *trial, r *http.Request) (*http.Response, error)
	kill   bool             // the worker, at this moment
	ends   map[string]State // by step, if not as without the fault
	waits  []string         // at these steps the order then waits, for an operator or for a refund to be possible
}

var inDatabase = []fault{
	{name: "killed before the commit", commit: pgproxy.LoseRequest, kill: true},
	{name: "killed after the commit", commit: pgproxy.LoseReply, kill: true},
	{name: "commit lost", commit: pgproxy.LoseRequest},
	{name: "reply to the commit lost", commit: pgproxy.LoseReply},
}

var inCalls = []fault{
	{name: "killed before the call", kill: true, call: lost},
	{name: "killed after the call", kill: true, call: replyLost},
	{name: "reply lost", call: replyLost},
	{name: "API down", call: down},
	{name: "500 instead", call: says(500, "internal", "same-key", false)},
	{name: "500 though it was done", call: func(c *trial, r *http.Request) (*http.Response, error) {
		if _, err := replyLost(c, r); !errors.Is(err, errLostReply) {
			return nil, err
		}
		return says(500, "internal", "same-key", false)(c, r)
	}},
	{name: "401", call: says(401, "unauthorized", "never", false)},
	{name: "a proxy's 402", call: says(402, "", "", false)},
}

var inPosts = []fault{
	{name: "409 in progress", call: says(409, "request-in-progress", "same-key", false)},
	{name: "422 not stored", call: says(422, "invalid-field", "never", false)},
	{name: "402", call: says(402, "insufficient-funds", "new-key", true),
		ends: map[string]State{"charge": Released}, waits: []string{"refund"}},
	{name: "409", call: says(409, "invalid-state", "new-key", true),
		ends: map[string]State{"charge": Released}, waits: []string{"refund"}},
	{name: "422", call: says(422, "unknown-account", "new-key", true),
		ends: map[string]State{"charge": Released}, waits: []string{"refund"}},
	{name: "422 key reused", call: says(422, "idempotency-key-reused", "new-key", false), waits: []string{"charge", "refund"}},
}

// TestFaultAtEveryStep ends every order as if nothing had happened, or as the answer says.
func TestFaultAtEveryStep(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	for _, p := range paths {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, b, p)
			for i, step := range p.steps {
				faults := inDatabase
				if step == "charge" || step == "refund" {
					faults = slices.Concat(faults, inCalls, inPosts)
				} else if strings.HasPrefix(step, "await") {
					faults = slices.Concat(faults, inCalls)
				}
				for _, f := range faults {
					if i < p.from {
						continue
					}
					t.Run(step+"/"+f.name, func(t *testing.T) {
						s.meet(t, &trial{shop: s, fault: f, step: step, commit: int64(i + 1)})
					})
				}
			}
			check(t, s.payments, s.db)
		})
	}
}

// shop is a database of orders for one path, and the payments service.
type shop struct {
	path
	bank     *bank
	db       *pgxpool.Pool
	url      string // of the database, through proxy
	http     *httptest.Server
	api      http.RoundTripper
	payments func(*testing.T, uuid.UUID) (int, int64)
	now      atomic.Pointer[trial]
}

func newShop(t *testing.T, b *bank, p path) *shop {
	t.Helper()
	db := newDatabase(t, 1000)
	s := &shop{path: p, bank: b, db: db.Pool(t, ""), api: http.DefaultTransport, payments: b.payments}
	if p.cards {
		cards := newCards()
		s.api, s.payments = cards, cards.payments
	}
	s.url = pgproxy.Start(t, db.URL, func(int, int) pgproxy.Fate { return s.now.Load().fate() }).URL(db.URL)
	s.http = httptest.NewServer(routes(s.db, b.shop()))
	t.Cleanup(s.http.Close)
	return s
}

// trial is one order that meets one fault.
type trial struct {
	*shop
	fault
	step   string
	commit int64 // of the step

	order   uuid.UUID
	commits atomic.Int64
	met     atomic.Bool // the fault
	killed  atomic.Bool
	stop    context.CancelFunc
	down    sync.Once
	up      time.Time // when the API is back
}

// meet places an order and lets workers go on with it, a new one when one is killed.
func (s *shop) meet(t *testing.T, c *trial) {
	s.now.Store(c)
	body := s.path.order
	if strings.Contains(body, "%q") {
		body = fmt.Sprintf(body, s.bank.customer())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	a, err := (&client.Client{URL: s.http.URL}).Post(ctx, "/orders", uuid.NewString(), rawJSON(body))
	if err != nil || a.Status != http.StatusCreated {
		t.Fatalf("%d %s %v", a.Status, a.Body, err)
	}
	placed, err := read(a, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.order = placed.ID

	c.work(t)
	if c.killed.Load() {
		c.killed.Store(false) // another worker, once the lease is over
		c.due(t)
		c.work(t)
	}
	waits := slices.Contains(c.waits, c.step)
	if waits {
		if state := c.state(t); slices.Contains([]State{Confirmed, Released, Rejected}, state) {
			t.Errorf("it does not wait, and is %s", state)
		}
		c.due(t)
		c.work(t)
	}

	want := c.end
	if end, other := c.ends[c.step]; other {
		want = end
	}
	if got := c.state(t); got != want {
		t.Errorf("it is %s, want %s", got, want)
	}
	if !c.met.Load() {
		t.Error("it did not meet the fault")
	}
	if paid, _ := s.payments(t, c.order); c.ends[c.step] != "" && paid != 0 {
		t.Error("a charge that was refused was charged")
	}
}

type rawJSON string

func (r rawJSON) MarshalJSON() ([]byte, error) { return []byte(r), nil }

// work lets a worker work until the order ends or waits, or the worker is killed.
func (c *trial) work(t *testing.T) {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(c.url)
	if err != nil {
		t.Fatal(err)
	}
	// Nothing that a killed worker does is seen by anyone.
	cfg.MaxConns = 1
	cfg.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
		if c.killed.Load() {
			return errors.New("killed")
		}
		return nil
	}
	cfg.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) { return !c.killed.Load(), nil }
	db, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()

	var ctx context.Context
	ctx, c.stop = context.WithCancel(t.Context())
	w := &worker{db: db, lease: 30 * time.Second, api: &client.Client{
		URL: "http://" + c.bank.addr, Token: c.bank.Token, HTTP: &http.Client{Transport: c},
	}}
	if c.fault.name == "API down" {
		w.lease = 1500 * time.Millisecond
	}

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = w.run(ctx)
	}()
	defer func() { c.stop(); <-ended }()
	testenv.Eventually(t, 30*time.Second, func() error {
		var state, cause string
		var rests bool
		err := c.shop.db.QueryRow(t.Context(), `SELECT state, last_error,
			next_try_at IS NULL OR next_try_at > now() + interval '40 s' FROM orders WHERE id = $1`, c.order).Scan(&state, &cause, &rests)
		if err == nil && !rests && !c.killed.Load() {
			err = fmt.Errorf("it is %s, %s", state, cause)
		}
		return err
	})
}

// due ends the wait for whatever the order waits for.
func (c *trial) due(t *testing.T) {
	t.Helper()
	if _, err := c.shop.db.Exec(t.Context(), `UPDATE orders SET next_try_at = now() WHERE id = $1 AND next_try_at IS NOT NULL`, c.order); err != nil {
		t.Fatal(err)
	}
}

func (c *trial) state(t *testing.T) (s State) {
	t.Helper()
	if err := c.shop.db.QueryRow(t.Context(), `SELECT state FROM orders WHERE id = $1`, c.order).Scan(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

// fate decides about a COMMIT of the worker.
func (c *trial) fate() pgproxy.Fate {
	if c.commits.Add(1) != c.commit || c.fault.commit == pgproxy.Pass {
		return pgproxy.Pass
	}
	c.meets()
	return c.fault.commit
}

func (c *trial) meets() {
	c.met.Store(true)
	if c.fault.kill {
		c.killed.Store(true)
		c.stop()
	}
}

// RoundTrip decides about a call of the worker.
func (c *trial) RoundTrip(r *http.Request) (*http.Response, error) {
	step := "await charge"
	if strings.Contains(r.URL.Path, "/refunds/") {
		step = "await refund"
	} else if r.Method == http.MethodPost {
		step = strings.Split(r.Header.Get("Idempotency-Key"), "/")[1]
	}

	if step == c.cancel {
		if err := c.cancelOrder(r.Context()); err != nil {
			return nil, err
		}
	}
	if c.call != nil && step == c.step && (!c.met.Load() || c.fault.name == "API down") {
		defer c.meets()
		return c.call(c, r)
	}
	return c.api.RoundTrip(r)
}

func (c *trial) cancelOrder(ctx context.Context) error {
	_, status, err := ask(ctx, http.MethodPost, c.shop.http.URL+"/orders/"+c.order.String()+"/cancel")
	if err == nil && status != http.StatusAccepted {
		err = fmt.Errorf("cancel: %d", status)
	}
	return err
}

var errLostReply = errors.New("the reply was lost")

func lost(*trial, *http.Request) (*http.Response, error) {
	return nil, errors.New("the request was lost")
}

func replyLost(c *trial, r *http.Request) (*http.Response, error) {
	response, err := c.api.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return nil, err
	}
	return nil, errLostReply
}

// down lasts longer than a call.
func down(c *trial, r *http.Request) (*http.Response, error) {
	c.down.Do(func() { c.up = time.Now().Add(700 * time.Millisecond) })
	if time.Now().Before(c.up) {
		return nil, errors.New("connection refused")
	}
	return c.api.RoundTrip(r)
}

// says answers in the place of the service.
func says(status int, code, retry string, stored bool) func(*trial, *http.Request) (*http.Response, error) {
	return func(_ *trial, r *http.Request) (*http.Response, error) {
		header := map[string]string{}
		if stored {
			header["Idempotent-Replayed"] = "false"
		}
		return response(r, status, header, client.Problem{Code: code, Retry: retry}), nil
	}
}
