package plans

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/internal/testenv"
)

// service is what cmd/api puts together, on recorded pools.
type service struct {
	db        *testenv.DB
	processor *payments.Processor
	api       http.Handler
	sent      map[string]*recorder // by role
}

func newService(t *testing.T, db *testenv.DB) *service {
	t.Helper()
	s := &service{db: db, sent: map[string]*recorder{}}
	for _, role := range []string{"api_write", "api_read", "relay", "consumer", "worker"} {
		s.sent[role] = newRecorder()
	}
	write, read := s.open(t, "api_write", s.sent["api_write"].trace), s.open(t, "api_read", s.sent["api_read"].trace)
	retention, err := idempotency.ExtendRetention(t.Context(), write, idempotency.DefaultRetention)
	if err != nil {
		t.Fatal(err)
	}
	s.processor = &payments.Processor{DB: write, Retention: retention, Render: httpapi.Render}
	s.api = httpapi.New(httpapi.Options{
		Submit: func(ctx context.Context, r payments.Request) (idempotency.Answer, error) {
			as, err := s.processor.Process(ctx, []payments.Request{r})
			if err != nil {
				return idempotency.Answer{}, err
			}
			return as[0], nil
		},
		Await: func(context.Context, payments.Request) bool { return false },
		Write: write, Read: read, Credentials: credentials.NewVerifier(write, time.Now), Retention: retention,
	})
	return s
}

// open opens a pool with the settings of the programs.
func (s *service) open(t *testing.T, role string, more ...func(*pgx.ConnConfig)) *pgxpool.Pool {
	t.Helper()
	url := s.db.URLAs(role) + "&statement_timeout=20s&lock_timeout=20s" // a slow server is no bad plan
	pool, err := postgres.Open(t.Context(), url, "plans", 1, slog.New(slog.DiscardHandler), more...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// caller is a client of a tenant.
type caller struct {
	*service
	tenant, client uuid.UUID
	token          string
}

func (s *service) newCaller(t *testing.T, name string) caller {
	t.Helper()
	c := caller{service: s}
	err := pgx.BeginFunc(t.Context(), s.db.Pool(t, ""), func(tx pgx.Tx) (err error) {
		if c.tenant, err = credentials.CreateTenant(t.Context(), tx, name); err != nil {
			return err
		}
		if c.client, err = credentials.CreateClient(t.Context(), tx, c.tenant, name); err != nil {
			return err
		}
		token, err := credentials.Create(t.Context(), tx, c.client, []string{credentials.ScopeFund})
		c.token = token.Reveal()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// use sends everything that a client can ask for: one by one over HTTP, a hundred at a time as a batch. account is one more that the
// tenant has, or none.
func (c caller) use(t *testing.T, account uuid.UUID) {
	t.Helper()
	// A hundred at a time, each twice: the second is a replay.
	var accounts []payments.Command
	for i := range 200 {
		accounts = append(accounts, payments.CreateAccount{Kind: payments.Customer, Currency: "USD", Name: fmt.Sprint(i)})
	}
	system := c.process(t, payments.CreateAccount{Kind: payments.System, Currency: "USD"})[0]
	customers := append(c.process(t, accounts[:100]...), c.process(t, accounts[100:]...)...)
	if account == uuid.Nil {
		account = customers[0]
	}
	var fund, move []payments.Command
	for i, from := range customers[:100] {
		fund = append(fund, payment(system, from), payment(system, account))
		move = append(move, payment(from, customers[100+i]))
	}
	c.process(t, fund[:100]...)
	c.process(t, fund[100:]...)
	c.process(t, move...)
	var systems []payments.Command
	for _, currency := range []string{"EUR", "GBP", "CHF", "JPY"} {
		systems = append(systems, payments.CreateAccount{Kind: payments.System, Currency: currency})
	}
	c.process(t, systems...)

	c.lockedAccount(t, payment(customers[0], customers[1]))
	c.live(t, customers[100:])
	c.charge(t, customers[100:])

	gone := httptest.NewRequestWithContext(t.Context(), http.MethodDelete, "/api/v1/webhook-endpoints/"+uuid.NewString(), nil)
	c.do(t, gone, http.StatusNotFound)

	key := uuid.NewString()
	order := fmt.Sprintf(`{"amount_minor":1,"currency":"USD","source_account":%q,"destination_account":%q}`, account, customers[1])
	c.post(t, "/api/v1/accounts", `{"currency":"USD"}`, uuid.NewString())
	paid := c.post(t, "/api/v1/payments", order, key)
	c.post(t, "/api/v1/payments", order, key)
	c.get(t, "/api/v1/payments/"+paid)
	c.get(t, "/api/v1/idempotency-keys/"+key)
	c.get(t, "/api/v1/idempotency-keys/unknown")
	c.get(t, "/api/v1/accounts/"+account.String())
	now := time.Now()
	span := url.Values{"from": {now.Add(-time.Hour).Format(time.RFC3339)}, "to": {now.Add(time.Hour).Format(time.RFC3339)}}.Encode()
	past := url.Values{"to": {now.Add(-24 * time.Hour).Format(time.RFC3339)}}.Encode()
	for _, list := range []string{
		"/api/v1/accounts/" + account.String() + "/entries?",
		"/api/v1/payments?", "/api/v1/payments?" + span, "/api/v1/payments?" + past,
		"/api/v1/payments?account=" + account.String(),
		"/api/v1/payments?account=" + account.String() + "&" + span,
		"/api/v1/payments?account=" + account.String() + "&" + past,
	} {
		for _, limit := range []string{"1", "100"} {
			if next := c.get(t, list+"&limit="+limit); next != "" {
				c.get(t, list+"&limit="+limit+"&cursor="+next)
			}
		}
	}
}

func payment(from, to uuid.UUID) payments.Command {
	return payments.CreatePayment{AmountMinor: 100, Currency: "USD", SourceAccount: from, DestinationAccount: to, MayFund: true}
}

// lockedAccount sends a payment whose source somebody else keeps locked, and waits until it is free.
func (c caller) lockedAccount(t *testing.T, command payments.Command) {
	t.Helper()
	tx, err := c.db.Pool(t, "").Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM accounts WHERE id = $1 FOR UPDATE`, command.(payments.CreatePayment).SourceAccount); err != nil {
		t.Fatal(err)
	}

	r := c.request(command)
	as, err := c.processor.Process(t.Context(), []payments.Request{r})
	if err != nil || as[0].State != idempotency.Busy {
		t.Fatalf("answered %v, %v", as, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !c.processor.Await(t.Context(), r) {
		t.Fatal("the account counts as held")
	}
}

func (c caller) request(command payments.Command) payments.Request {
	return payments.Request{
		Request: idempotency.Request{
			TenantID: c.tenant, ClientID: c.client, Key: uuid.NewString(), RequestID: uuid.NewString(),
			Fingerprint: idempotency.NewFingerprint(c.tenant, "POST", "/x", nil, fmt.Append(nil, command)),
		},
		Method: "POST", Route: "/x", Command: command,
	}
}

// process sends commands as one batch, and once more, and returns the ids of what they made.
func (c caller) process(t *testing.T, commands ...payments.Command) (ids []uuid.UUID) {
	t.Helper()
	var rs []payments.Request
	for _, command := range commands {
		rs = append(rs, c.request(command))
	}
	for _, want := range []idempotency.State{idempotency.New, idempotency.Replay} {
		as, err := c.processor.Process(t.Context(), rs)
		if err != nil {
			t.Fatal(err)
		}
		ids = nil
		for _, a := range as {
			var made struct{ ID uuid.UUID }
			if a.State != want || a.Response.Status != http.StatusCreated || json.Unmarshal(a.Response.Body, &made) != nil {
				t.Fatalf("answered %s %d %s", a.State, a.Response.Status, a.Response.Body)
			}
			ids = append(ids, made.ID)
		}
	}
	return ids
}

func (c caller) post(t *testing.T, path, body, key string) (id string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	return c.do(t, r, http.StatusCreated).ID
}

// get returns the cursor of the next page, if there is one.
func (c caller) get(t *testing.T, path string) (next string) {
	t.Helper()
	return c.do(t, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil), http.StatusOK).Next
}

type answer struct {
	ID   string `json:"id"`
	Next string `json:"next_cursor"`
}

func (c caller) do(t *testing.T, r *http.Request, want int) (a answer) {
	t.Helper()
	r.Header.Set("Authorization", "Bearer "+c.token)
	w := httptest.NewRecorder()
	c.api.ServeHTTP(w, r)
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || w.Code != want {
		t.Errorf("%s %s: %d %s (%v)", r.Method, r.URL, w.Code, w.Body, err)
	}
	return a
}
