package httpapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/groupcommit"
	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/testenv"
)

// Of 50 requests, 32 are with the committers, and the neighbour's comes right behind these.
func TestFloodWaitsBehindItselfAndIsExecuted(t *testing.T) {
	t.Parallel()
	const flood, let = 50, 32
	g := startGrouped(t, groupcommit.Options{Committers: 1}, func(o *httpapi.Options) { o.TenantMax = flood })
	flooder, neighbour := g.caller, g.newTenant(t)
	create := func(c caller) func() answer {
		return func() answer { return c.post(t, "/api/v1/accounts", `{"currency":"USD"}`) }
	}
	create(neighbour)().wantStatus(t, http.StatusCreated)
	open := g.shut(t)
	before := g.begun.Load()
	answers := []<-chan answer{later(create(flooder))}
	testenv.Eventually(t, 10*time.Second, equal(before+1, g.begun.Load)) // alone in its batch
	for range flood - 1 {
		answers = append(answers, later(create(flooder)))
	}
	testenv.Eventually(t, 10*time.Second, equal(let-1, g.group.Load().Waiting))
	answers = append(answers, later(create(neighbour)))
	testenv.Eventually(t, 10*time.Second, equal(let, g.group.Load().Waiting))
	open()
	for _, a := range answers {
		(<-a).wantStatus(t, http.StatusCreated)
	}
}

// Otherwise a tenant would be refused from its TENANT_MAX-th failure on.
func TestShareIsReturnedAfterFailure(t *testing.T) {
	t.Parallel()
	var submits atomic.Int64
	a := start(t, func(o *httpapi.Options) {
		o.TenantMax = 1
		submit := o.Submit
		o.Submit = func(ctx context.Context, r payments.Request) (idempotency.Answer, error) {
			switch submits.Add(1) {
			case 1:
				return idempotency.Answer{}, errors.New("unforeseen")
			case 2:
				panic("unforeseen")
			}
			return submit(ctx, r)
		}
	})
	for _, status := range []int{http.StatusInternalServerError, http.StatusInternalServerError, http.StatusCreated} {
		a.caller.post(t, "/api/v1/accounts", `{"currency":"USD"}`).wantStatus(t, status)
	}
}

// Anybody can send invented tokens, as fast as they like.
func TestStrangersDoNotWriteTheLog(t *testing.T) {
	t.Parallel()
	const waiting, refused = 1100, 20 // a hundred of them are being looked up, at most
	var log, busy atomic.Int64
	a := start(t, func(o *httpapi.Options) { o.Log = slog.New(slog.NewTextHandler(counter{&log}, nil)) })
	locked, err := a.owner.Begin(t.Context())
	if err == nil {
		_, err = locked.Exec(t.Context(), `LOCK TABLE credentials`)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locked.Rollback(context.Background()) })
	var all sync.WaitGroup
	for range waiting + refused {
		all.Go(func() {
			r := httptest.NewRequest(http.MethodGet, "/api/v1/payments", nil)
			r.Header.Set("Authorization", "Bearer "+invented())
			w := httptest.NewRecorder()
			a.handler.ServeHTTP(w, r)
			if w.Code == http.StatusServiceUnavailable {
				busy.Add(1)
			}
		})
	}
	testenv.Eventually(t, 10*time.Second, func() error {
		if n := busy.Load(); n < refused {
			return fmt.Errorf("%d were told to come back", n)
		}
		return nil
	})
	if n := log.Load(); n > 0 {
		t.Errorf("%d lines for %d refusals", n, busy.Load())
	}
	if err := locked.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	all.Wait()
}

// counter counts lines about refusals. A look-up that the lock held up for too long has one, too.
type counter struct{ *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(credentials.ErrBusy.Error())) {
		c.Add(1)
	}
	return len(p), nil
}

// A client's one token is given back whenever nothing was executed for it.
func TestRateTokenIsReturned(t *testing.T) {
	t.Parallel()
	const body = `{"currency":"USD"}`
	once := func(o *httpapi.Options) { o.RateLimit = 0.001 } // one, and the next in a quarter of an hour

	t.Run("after a replay", func(t *testing.T) {
		t.Parallel()
		a := start(t, func(o *httpapi.Options) {
			once(o)
			submit := o.Submit
			o.Submit = func(ctx context.Context, r payments.Request) (idempotency.Answer, error) {
				if r.Key == "replay" {
					return idempotency.Answer{State: idempotency.Replay, Response: idempotency.Response{Status: 201}}, nil
				}
				return submit(ctx, r)
			}
		})
		for range 3 {
			a.caller.post(t, "/api/v1/accounts", body, "Idempotency-Key", "replay").wantStatus(t, http.StatusCreated)
		}
		a.caller.post(t, "/api/v1/accounts", body).wantStatus(t, http.StatusCreated)
		a.caller.post(t, "/api/v1/accounts", body).wantStatus(t, http.StatusTooManyRequests)
	})

	t.Run("when the queue was full", func(t *testing.T) {
		t.Parallel()
		var full atomic.Bool
		a := start(t, func(o *httpapi.Options) {
			once(o)
			submit := o.Submit
			o.Submit = func(ctx context.Context, r payments.Request) (idempotency.Answer, error) {
				if full.Load() {
					return idempotency.Answer{}, groupcommit.ErrOverloaded
				}
				return submit(ctx, r)
			}
		})
		full.Store(true)
		a.caller.post(t, "/api/v1/accounts", body).is(t, http.StatusServiceUnavailable, "unavailable")
		full.Store(false)
		a.caller.post(t, "/api/v1/accounts", body).wantStatus(t, http.StatusCreated)
		a.caller.post(t, "/api/v1/accounts", body).wantStatus(t, http.StatusTooManyRequests)
	})

	t.Run("beyond the tenant's share", func(t *testing.T) {
		t.Parallel()
		g := startGrouped(t, groupcommit.Options{Committers: 1}, func(o *httpapi.Options) {
			once(o)
			o.TenantMax = 1
		})
		other := g.caller.newClient(t)
		open := g.shut(t)
		busy := later(func() answer { return g.caller.post(t, "/api/v1/accounts", body) })
		testenv.Eventually(t, 10*time.Second, equal(1, g.begun.Load))
		other.post(t, "/api/v1/accounts", body).is(t, http.StatusTooManyRequests, "rate-limited")
		open()
		(<-busy).wantStatus(t, http.StatusCreated)
		other.post(t, "/api/v1/accounts", body).wantStatus(t, http.StatusCreated)
	})
}

// A page may have 6 MiB, and a client has 20 s to read it.
func TestUnreadAnswersStayWithinTenantsTurns(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	turns := int64(a.read.Config().MaxConns / 2)
	flooder, neighbour := a.caller, a.newTenant(t)
	released := make(chan struct{})
	var all sync.WaitGroup
	read := func(c caller) *stalled {
		w := &stalled{ResponseRecorder: httptest.NewRecorder(), writing: make(chan struct{}), released: released}
		r := httptest.NewRequest(http.MethodGet, "/api/v1/payments", nil)
		r.Header.Set("Authorization", "Bearer "+c.token)
		all.Go(func() { a.handler.ServeHTTP(w, r) })
		return w
	}

	var answers []*stalled
	for range 3 * turns {
		answers = append(answers, read(flooder))
	}
	unread := int64(0)
	for _, w := range answers {
		if <-w.writing; w.Code == http.StatusOK {
			unread++
		}
	}
	if unread != turns {
		t.Errorf("%d answers wait to be read, want %d", unread, turns)
	}
	other := read(neighbour)
	if <-other.writing; other.Code != http.StatusOK {
		t.Errorf("another tenant got %d", other.Code)
	}

	close(released)
	all.Wait()
	testenv.Eventually(t, 10*time.Second, func() error {
		if got := flooder.get(t, "/api/v1/payments"); got.status != http.StatusOK {
			return fmt.Errorf("%d once all is read", got.status)
		}
		return nil
	})
}

// stalled is the connection of a client that reads nothing until it is released.
type stalled struct {
	*httptest.ResponseRecorder
	writing, released chan struct{}
}

func (s *stalled) Write([]byte) (int, error) {
	close(s.writing)
	<-s.released
	return 0, io.ErrClosedPipe
}
