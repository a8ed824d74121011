package httpapi_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/testenv"
)

// api is the whole of it: a server, a database of its own, and a tenant with a client that may
// fund.
type api struct {
	*httptest.Server
	owner   *pgxpool.Pool
	write   *pgxpool.Pool
	read    *pgxpool.Pool
	handler http.Handler
	caller  caller // may fund

	mu   sync.Mutex
	seen []httpapi.Observation
}

// caller is a client with a credential.
type caller struct {
	api               *api
	tenant, client    uuid.UUID
	credential, token string
}

// start begins an api; change may alter its options.
func start(t *testing.T, change func(*httpapi.Options)) *api {
	t.Helper()
	db := testenv.Database(t)
	a := &api{owner: db.Pool(t, ""), write: db.Pool(t, "api_write"), read: db.Pool(t, "api_read")}
	processor := &payments.Processor{DB: a.write, Retention: idempotency.DefaultRetention, Render: httpapi.Render}
	o := httpapi.Options{
		Submit: func(ctx context.Context, r payments.Request) (idempotency.Answer, error) {
			as, err := processor.Process(ctx, []payments.Request{r})
			if err != nil {
				return idempotency.Answer{}, err
			}
			return as[0], nil
		},
		Await:       processor.Await,
		Ready:       func(context.Context) error { return nil },
		Write:       a.write,
		Read:        a.read,
		Credentials: credentials.NewVerifier(a.write, time.Now),
		Observe: func(_ context.Context, seen httpapi.Observation) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.seen = append(a.seen, seen)
		},
	}
	if change != nil {
		change(&o)
	}
	a.handler = httpapi.New(o)
	a.Server = httptest.NewUnstartedServer(a.handler)
	a.Config = httpapi.Server(a.handler)
	a.Start()
	t.Cleanup(a.Close)
	a.caller = a.newTenant(t, credentials.ScopeFund)
	return a
}

func (a *api) newTenant(t *testing.T, scopes ...string) caller {
	t.Helper()
	c := caller{api: a}
	a.tx(t, func(ctx context.Context, tx pgx.Tx) (err error) {
		c.tenant, err = credentials.CreateTenant(ctx, tx, uuid.NewString())
		return err
	})
	return c.newClient(t, scopes...)
}

func (c caller) newClient(t *testing.T, scopes ...string) caller {
	t.Helper()
	c.api.tx(t, func(ctx context.Context, tx pgx.Tx) (err error) {
		c.client, err = credentials.CreateClient(ctx, tx, c.tenant, uuid.NewString())
		return err
	})
	return c.newCredential(t, scopes...)
}

func (c caller) newCredential(t *testing.T, scopes ...string) caller {
	t.Helper()
	c.api.tx(t, func(ctx context.Context, tx pgx.Tx) error {
		token, err := credentials.Create(ctx, tx, c.client, scopes)
		c.credential, c.token = token.ID(), token.Reveal()
		return err
	})
	return c
}

func (a *api) tx(t *testing.T, fn func(context.Context, pgx.Tx) error) {
	t.Helper()
	if err := pgx.BeginFunc(t.Context(), a.owner, func(tx pgx.Tx) error { return fn(t.Context(), tx) }); err != nil {
		t.Fatal(err)
	}
}

// answer is an answer that was read to its end.
type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request. headers are name, value, name, value …; an empty value takes a header away.
func (c caller) do(t *testing.T, method, path, body string, headers ...string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, c.api.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", uuid.NewString())
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Del(headers[i])
		if headers[i+1] != "" {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	return send(t, c.api, r)
}

func send(t *testing.T, a *api, r *http.Request) answer {
	t.Helper()
	response, err := a.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	got := answer{response.StatusCode, response.Header, string(body)}
	if got.status >= 400 && r.Method != http.MethodHead {
		got.problem(t)
	}
	return got
}

func (c caller) post(t *testing.T, path, body string, headers ...string) answer {
	t.Helper()
	return c.do(t, http.MethodPost, path, body, headers...)
}

func (c caller) get(t *testing.T, path string) answer {
	t.Helper()
	return c.do(t, http.MethodGet, path, "")
}

// problem is what clients read of one.
type problem struct {
	Type, Title, Detail, Instance, Code, Retry string
	Status                                     int
	RequestID                                  string `json:"request_id"`
	PaymentID                                  string `json:"payment_id"`
	Errors                                     []struct{ Pointer, Parameter, Code, Detail string }
}

// problem reads the answer as one and checks what all have in common.
func (a answer) problem(t *testing.T) problem {
	t.Helper()
	var p problem
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.Fatalf("%d %q is no problem: %v", a.status, a.body, err)
	}
	if a.header.Get("Content-Type") != "application/problem+json" || p.Type != "/problems/"+p.Code || p.Code == "" || p.Title == "" ||
		p.Detail == "" || p.Instance == "" || p.Status != a.status || p.Retry != "same-key" && p.Retry != "new-key" && p.Retry != "never" {
		t.Errorf("%d %s %s is not a whole problem", a.status, a.header.Get("Content-Type"), a.body)
	}
	stored := a.header.Get("Idempotent-Replayed") != ""
	if !stored && p.RequestID != a.header.Get("X-Request-Id") || stored && p.RequestID != "" {
		t.Errorf("request_id is %q, X-Request-Id %q", p.RequestID, a.header.Get("X-Request-Id"))
	}
	return p
}

// is fails the test when the answer is not this problem.
func (a answer) is(t *testing.T, status int, code string) problem {
	t.Helper()
	if a.status != status {
		t.Fatalf("got %d %s, want %d %s", a.status, a.body, status, code)
	}
	p := a.problem(t)
	if p.Code != code {
		t.Errorf("got code %s: %s, want %s", p.Code, p.Detail, code)
	}
	return p
}

// read decodes an answer that must have this status.
func read[T any](t *testing.T, a answer, status int) (v T) {
	t.Helper()
	if a.status != status {
		t.Fatalf("got %d %s, want %d", a.status, a.body, status)
	}
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func (c caller) account(t *testing.T) string {
	t.Helper()
	return read[payments.Account](t, c.post(t, "/api/v1/accounts", `{"currency":"USD"}`), http.StatusCreated).ID.String()
}

// funded opens an account that has amount.
func (c caller) funded(t *testing.T, amount int64) string {
	t.Helper()
	id := c.account(t)
	system := uuid.Must(uuid.NewV7()).String()
	c.api.tx(t, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO accounts (id, tenant_id, kind, currency) VALUES ($1, $2, 'system', 'USD') ON CONFLICT DO NOTHING`, system, c.tenant)
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, `SELECT id::text FROM accounts WHERE tenant_id = $1 AND kind = 'system'`, c.tenant).Scan(&system)
	})
	c.pay(t, system, id, amount)
	return id
}

func (c caller) pay(t *testing.T, from, to string, amount int64) payments.Payment {
	t.Helper()
	return read[payments.Payment](t, c.post(t, "/api/v1/payments", order(from, to, amount)), http.StatusCreated)
}

func order(from, to string, amount int64) string {
	b, _ := json.Marshal(map[string]any{"amount_minor": amount, "currency": "USD", "source_account": from, "destination_account": to})
	return string(b)
}

// last is what was observed of the latest request with this id.
func (a *api) last(id string) (o httpapi.Observation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, seen := range a.seen {
		if seen.RequestID == id {
			o = seen
		}
	}
	return o
}
