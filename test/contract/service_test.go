package contract_test

import (
	"context"
	"errors"
	"net/http"
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

// service is the API on a database of its own, with two tenants.
type service struct {
	db        *testenv.DB
	owner     *pgxpool.Pool
	processor *payments.Processor
	options   httpapi.Options
	http.Handler

	tenant, client    uuid.UUID
	funding, ordinary string // bearer tokens of the client, with the scope accounts:fund and without
	stranger          string // of another tenant
	system, rich      uuid.UUID
	clearing          uuid.UUID
	poor, euros       uuid.UUID
}

func start(t *testing.T) *service {
	t.Helper()
	db := testenv.Database(t)
	s := &service{db: db, owner: db.Pool(t, "")}
	write := db.Pool(t, "api_write")
	s.processor = &payments.Processor{DB: write, Retention: idempotency.DefaultRetention, Render: httpapi.Render}
	s.options = httpapi.Options{
		Submit: s.submit,
		Await:  func(context.Context, payments.Request) bool { return false },
		Ready:  func(context.Context) error { return nil },
		Write:  write, Read: db.Pool(t, "api_read"), Credentials: credentials.NewVerifier(write, time.Now),
	}
	s.options.PSP = &httpapi.PSPWebhooks{Secret: pspSecret, Record: s.record}
	s.Handler = httpapi.New(s.options)

	s.tenant, s.client = s.enrol(t, "one")
	s.funding, s.ordinary = s.token(t, s.client, credentials.ScopeFund), s.token(t, s.client)
	_, other := s.enrol(t, "other")
	s.stranger = s.token(t, other)

	s.system = s.open(t, payments.System, "USD")
	s.rich, s.poor, s.euros = s.open(t, payments.Customer, "USD"), s.open(t, payments.Customer, "USD"), s.open(t, payments.Customer, "EUR")
	s.clearing = s.open(t, payments.Clearing, "USD")
	s.do(t, payments.CreatePayment{AmountMinor: 1_000_000, Currency: "USD", SourceAccount: s.system, DestinationAccount: s.rich, MayFund: true})
	return s
}

// with returns the API with other options.
func (s *service) with(change func(*httpapi.Options)) http.Handler {
	o := s.options
	change(&o)
	return httpapi.New(o)
}

func (s *service) submit(ctx context.Context, r payments.Request) (idempotency.Answer, error) {
	answers, err := s.processor.Process(ctx, []payments.Request{r})
	if err != nil {
		return idempotency.Answer{}, err
	}
	return answers[0], nil
}

func (s *service) enrol(t *testing.T, name string) (tenant, client uuid.UUID) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), s.owner, func(tx pgx.Tx) (err error) {
		if tenant, err = credentials.CreateTenant(t.Context(), tx, name); err != nil {
			return err
		}
		client, err = credentials.CreateClient(t.Context(), tx, tenant, "shop")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tenant, client
}

func (s *service) token(t *testing.T, client uuid.UUID, scopes ...string) string {
	t.Helper()
	var token credentials.Token
	err := pgx.BeginFunc(t.Context(), s.owner, func(tx pgx.Tx) (err error) {
		token, err = credentials.Create(t.Context(), tx, client, scopes)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return token.Reveal()
}

// do executes a command of the tenant and makes sure of nothing but that it was answered.
func (s *service) do(t *testing.T, c payments.Command) idempotency.Answer {
	t.Helper()
	a, err := s.submit(t.Context(), payments.Request{
		Request: s.key(uuid.NewString()), Method: http.MethodPost, Route: "/test", Command: c,
		Headers: map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// paid is a payment from rich to poor, done at once.
func (s *service) paid(t *testing.T, amount int64) payments.Target {
	t.Helper()
	return s.authorized(t, amount, 0)
}

// authorized is a payment from rich to poor that is held for a while.
func (s *service) authorized(t *testing.T, amount int64, length time.Duration) payments.Target {
	t.Helper()
	location := s.do(t, payments.CreatePayment{
		AmountMinor: amount, Currency: "USD", SourceAccount: s.rich, DestinationAccount: s.poor, Authorization: length,
	}).Response.Location
	id, err := uuid.Parse(location[len("/api/v1/payments/"):])
	if err != nil {
		t.Fatal(err)
	}
	return payments.Target{PaymentID: id}
}

// expire sweeps until one authorization has expired.
func (s *service) expire(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, 10*time.Second, func() error {
		n, err := s.processor.ExpireBatch(t.Context(), 10)
		if err == nil && n == 0 {
			err = errors.New("nothing has expired yet")
		}
		return err
	})
}

// empty moves all that an account has to the rich one.
func (s *service) empty(t *testing.T, account uuid.UUID) {
	t.Helper()
	var balance int64
	err := s.owner.QueryRow(t.Context(), `SELECT balance_minor FROM accounts WHERE id = $1`, account).Scan(&balance)
	if err != nil {
		t.Fatal(err)
	}
	if balance > 0 {
		s.do(t, payments.CreatePayment{AmountMinor: balance, Currency: "USD", SourceAccount: account, DestinationAccount: s.rich})
	}
}

func (s *service) key(key string) idempotency.Request {
	return idempotency.Request{
		TenantID: s.tenant, ClientID: s.client, Key: key, RequestID: "contract",
		Fingerprint: idempotency.NewFingerprint(s.tenant, http.MethodPost, "/test", nil, []byte(key)),
	}
}

func (s *service) open(t *testing.T, kind payments.Kind, currency string) uuid.UUID {
	t.Helper()
	location := s.do(t, payments.CreateAccount{Kind: kind, Currency: currency, Name: "contract"}).Response.Location
	id, err := uuid.Parse(location[len("/api/v1/accounts/"):])
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// hold claims key as an attempt does that is at work until the test ends.
func (s *service) hold(t *testing.T, key string) {
	t.Helper()
	tx, err := s.db.Pool(t, "api_write").Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	answers, err := idempotency.Claim(t.Context(), tx, []idempotency.Request{s.key(key)}, time.Hour)
	if err != nil || answers[0].State != idempotency.New {
		t.Fatalf("claim: %v, %v", answers, err)
	}
}

// spoil changes the database behind the program's back.
func (s *service) spoil(t *testing.T, statement string, args ...any) {
	t.Helper()
	if tag, err := s.owner.Exec(t.Context(), statement, args...); err != nil || tag.RowsAffected() != 1 {
		t.Fatalf("%s: %v, %v", statement, tag, err)
	}
}

// nowhere is a pool whose server does not exist.
func nowhere(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/nothing?connect_timeout=1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

var errUnforeseen = errors.New("unforeseen")
