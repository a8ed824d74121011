package webhooks_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/internal/webhooks"
)

const soon = 30 * time.Second

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// bench is a tenant with its endpoints.
type bench struct {
	owner, api, worker *pgxpool.Pool
	tenant             uuid.UUID
}

func newBench(t testing.TB) *bench {
	t.Helper()
	db := testenv.Database(t)
	return &bench{owner: db.Pool(t, ""), api: db.Pool(t, "api_write"), worker: db.Pool(t, "worker"), tenant: uuid.New()}
}

// inTx runs fn as the API or the worker would.
func inTx[T any](t testing.TB, db *pgxpool.Pool, fn func(context.Context, pgx.Tx) (T, error)) T {
	t.Helper()
	v, err := try(t, db, fn)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func try[T any](t testing.TB, db *pgxpool.Pool, fn func(context.Context, pgx.Tx) (T, error)) (v T, err error) {
	t.Helper()
	err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		v, err = fn(t.Context(), tx)
		return err
	})
	return v, err
}

func (b *bench) endpoint(t testing.TB, url string, types ...string) webhooks.Secret {
	t.Helper()
	return inTx(t, b.api, func(ctx context.Context, tx pgx.Tx) (webhooks.Secret, error) {
		return webhooks.Create(ctx, tx, b.tenant, url, types)
	})
}

func (b *bench) find(t testing.TB, id uuid.UUID) webhooks.Endpoint {
	t.Helper()
	return inTx(t, b.api, func(ctx context.Context, tx pgx.Tx) (webhooks.Endpoint, error) {
		return webhooks.Find(ctx, tx, b.tenant, id)
	})
}

func (b *bench) enable(t testing.TB, id uuid.UUID) {
	t.Helper()
	inTx(t, b.api, func(ctx context.Context, tx pgx.Tx) (webhooks.Endpoint, error) {
		return webhooks.Enable(ctx, tx, b.tenant, id)
	})
}

func (b *bench) deliveries(t testing.TB, endpoint uuid.UUID) []webhooks.Delivery {
	t.Helper()
	return inTx(t, b.api, func(ctx context.Context, tx pgx.Tx) ([]webhooks.Delivery, error) {
		return webhooks.ListDeliveries(ctx, tx, b.tenant, endpoint, uuid.Max, 1000)
	})
}

// event is the n-th of a payment.
func (b *bench) event(payment uuid.UUID, n int64) webhooks.Event {
	return webhooks.Event{
		ID: uuid.New(), Tenant: b.tenant, Type: "payment.completed", Source: "/oncepay", Subject: payment.String(),
		Time: time.Now(), Sequence: n, Payload: []byte(`{"id":"` + payment.String() + `"}`),
	}
}

func (b *bench) write(t testing.TB, events ...webhooks.Event) {
	t.Helper()
	inTx(t, b.worker, func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
		return struct{}{}, webhooks.Write(ctx, tx, events)
	})
}

func (b *bench) count(t testing.TB, sql string, args ...any) (n int) {
	t.Helper()
	if err := b.owner.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func (b *bench) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := b.owner.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

const pending = `SELECT count(*) FROM webhook_deliveries WHERE state = 'pending'`

// sent waits until nothing is pending.
func (b *bench) sent(t testing.TB) {
	t.Helper()
	testenv.Eventually(t, 10*soon, func() error {
		if n := b.count(t, pending); n > 0 {
			return fmt.Errorf("%d are pending", n)
		}
		return nil
	})
}

// run runs a sender until the test ends or stop is called.
func (b *bench) run(t testing.TB, s *webhooks.Sender) (stop func()) {
	t.Helper()
	s.DB, s.Log = b.worker, slog.New(slog.DiscardHandler)
	if s.Allow == nil {
		s.Allow = loopback
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// sending runs a sender that tries again soon.
func (b *bench) sending(t testing.TB) (stop func()) {
	t.Helper()
	return b.run(t, &webhooks.Sender{Schedule: []time.Duration{20 * time.Millisecond}, Timeout: time.Minute})
}

// received is a call that a receiver got.
type received struct {
	header http.Header
	text   []byte
	body   struct {
		ID, Type, Source, Subject, Sequence string
		Time, Timestamp                     time.Time
		Data                                json.RawMessage
	}
}

// receiver notes the calls it gets and answers them.
type receiver struct {
	URL string

	mu  sync.Mutex
	got []received
}

// receive starts a receiver; answer returns the status for its n-th call, counted from 0.
func receive(t testing.TB, answer func(n int, r received) int) *receiver {
	t.Helper()
	r := &receiver{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		got := received{header: request.Header, text: make([]byte, request.ContentLength)}
		if _, err := request.Body.Read(got.text); err != nil && len(got.text) == 0 {
			t.Error(err)
		}
		if err := json.Unmarshal(got.text, &got.body); err != nil {
			t.Errorf("%q: %v", got.text, err)
		}
		r.mu.Lock()
		n := len(r.got)
		r.got = append(r.got, got)
		r.mu.Unlock()
		w.WriteHeader(answer(n, got))
	}))
	t.Cleanup(s.Close)
	r.URL = s.URL
	return r
}

func (r *receiver) calls() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]received(nil), r.got...)
}

// has waits until the receiver got n calls.
func (r *receiver) has(t testing.TB, n int) []received {
	t.Helper()
	testenv.Eventually(t, soon, func() error {
		if got := len(r.calls()); got < n {
			return fmt.Errorf("%d calls of %d", got, n)
		}
		return nil
	})
	return r.calls()
}

func ok(int, received) int { return http.StatusOK }
