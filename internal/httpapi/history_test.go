package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/groupcommit"
	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/testenv"
)

// history is what the clients noted.
type history struct {
	mu  sync.Mutex
	all []porcupine.Operation
}

func (h *history) add(client int, a asked, t told, from, to time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()

	o := porcupine.Operation{ClientId: client, Input: a, Output: t, Call: from.UnixNano(), Return: to.UnixNano()}
	if t.unknown {
		o.Return = math.MaxInt64
	}
	h.all = append(h.all, o)
}

// ask sends a request until its outcome is known. Some answers are lost on the way, and some clients
// then give up.
func (c caller) ask(ctx context.Context, a asked, random *rand.Rand) told {
	method, path, body := http.MethodPost, "/api/v1/payments/"+a.payment+"/"+a.action, "{}"
	switch {
	case a.action == "read":
		method, path = http.MethodGet, "/api/v1/payments/"+a.payment
	case a.amount > 0:
		body = fmt.Sprintf(`{"amount_minor":%d}`, a.amount)
	}

	for key := uuid.NewString(); ctx.Err() == nil; {
		patience := 10 * time.Second
		lost := method == http.MethodPost && random.IntN(5) == 0
		if lost {
			patience = time.Duration(random.IntN(5000)) * time.Microsecond
		}

		t, err := c.attempt(ctx, patience, method, path, body, key, a.version)
		again := err != nil || t.code == "request-in-progress" ||
			t.status == http.StatusServiceUnavailable || t.status == http.StatusTooManyRequests
		if !again {
			return t
		}
		if lost && random.IntN(4) == 0 {
			return told{unknown: true}
		}
	}
	return told{unknown: true}
}

func (c caller) attempt(
	ctx context.Context, patience time.Duration, method, path, body, key string, version int64,
) (t told, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, c.api.URL+path, strings.NewReader(body))
	if err != nil {
		return t, err
	}
	r.Header.Set("Authorization", "Bearer "+c.token)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	if version > 0 {
		r.Header.Set("If-Match", fmt.Sprintf("%q", fmt.Sprint(version)))
	}

	response, err := c.api.Client().Do(r)
	if err != nil {
		return t, err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return t, err
	}

	var document struct {
		Code, Status   string
		Version        int64
		CapturedMinor  int64 `json:"captured_minor"`
		RefundedMinor  int64 `json:"refunded_minor"`
		AmountMinor    int64 `json:"amount_minor"`
		PaymentVersion int64 `json:"payment_version"`
	}
	if response.StatusCode >= 400 {
		var p struct{ Code string }
		err = json.Unmarshal(answer, &p)
		return told{status: response.StatusCode, code: p.Code}, err
	}
	err = json.Unmarshal(answer, &document)
	t = told{status: response.StatusCode}
	if t.status == http.StatusCreated {
		t.refunded, t.version = document.AmountMinor, document.PaymentVersion
	} else {
		t.payment = life{status: document.Status, version: document.Version,
			captured: document.CapturedMinor, refunded: document.RefundedMinor}
	}
	return t, err
}

// send asks something at random about a payment, and notes it.
func (h *history) send(ctx context.Context, c caller, client int, p payments.Payment, random *rand.Rand) {
	a := asked{payment: p.ID.String()}
	switch random.IntN(8) {
	case 0, 1:
		a.action, a.amount = "capture", held-20+random.Int64N(30)
	case 2:
		a.action = "cancel"
	case 3, 4, 5:
		a.action, a.amount = "refunds", 1+random.Int64N(40)
	default:
		a.action = "read"
	}
	if a.action != "read" && random.IntN(4) == 0 {
		a.version = 1 + random.Int64N(4)
	}

	from := time.Now()
	a.early = from.Before(p.AuthorizationExpiresAt.Add(tolerance))
	t := c.ask(ctx, a, random)
	h.add(client, a, t, from, time.Now())
}

// authorize holds money for n payments, at once.
func (c caller) authorize(t *testing.T, h *history, n int, from, to string, seconds int) []payments.Payment {
	t.Helper()
	body := strings.TrimSuffix(order(from, to, held), "}") +
		fmt.Sprintf(`,"capture":"manual","authorization_seconds":%d}`, seconds)
	var answers []<-chan answer
	for range n {
		key := uuid.NewString()
		answers = append(answers, later(func() (a answer) {
			for range 20 { // a slow machine may not know an outcome at once
				if a = c.post(t, "/api/v1/payments", body, "Idempotency-Key", key); a.status == http.StatusCreated {
					break
				}
			}
			return a
		}))
	}

	var all []payments.Payment
	for _, a := range answers {
		p := read[payments.Payment](t, <-a, http.StatusCreated)
		all = append(all, p)

		// The server may be in a container, or on another machine whose clock is as good.
		from, to := p.AuthorizationExpiresAt.Add(-tolerance), p.AuthorizationExpiresAt.Add(tolerance)
		h.add(0, asked{payment: p.ID.String(), action: "over"}, told{}, from, to)
		h.add(0, asked{payment: p.ID.String(), action: "expire"}, told{unknown: true}, from, to)
	}
	return all
}

// Captures, cancels and refunds race for the same payments while backends are killed; then captures,
// cancels and sweeps do, just when the time of the payments is over.
func TestHistoryIsOneLife(t *testing.T) {
	t.Parallel()
	const clients = 32
	g := startGrouped(t, groupcommit.Options{}, func(o *httpapi.Options) { o.AuthorizationMin = time.Second })
	c := g.caller
	from, to := c.funded(t, 1_000_000), c.funded(t, 1_000_000) // so that no refund is declined

	var h history
	ctx, stop := context.WithCancel(t.Context())
	var all, chaos sync.WaitGroup
	early := c.authorize(t, &h, clients/2, from, to, 3600)
	chaos.Go(func() { g.killBackends(ctx, t) })
	for client := range clients {
		random := rand.New(rand.NewPCG(uint64(client), 11))
		all.Go(func() {
			for range 12 {
				h.send(t.Context(), c, client, early[random.IntN(len(early))], random)
			}
		})
	}
	all.Wait()
	stop()
	chaos.Wait()

	ctx, stop = context.WithCancel(t.Context())
	late := c.authorize(t, &h, 2*clients, from, to, 2)
	chaos.Go(func() { g.killBackends(ctx, t) })
	chaos.Go(func() {
		for ctx.Err() == nil {
			g.sweep(ctx, 5)
			pause(ctx, time.Millisecond)
		}
	})
	for client := range clients {
		random := rand.New(rand.NewPCG(uint64(client), 12))
		all.Go(func() {
			for i := client % 8; i < len(late); i += 8 {
				at := late[i].AuthorizationExpiresAt.Add(time.Duration(random.IntN(100)-80) * time.Millisecond)
				pause(t.Context(), time.Until(at))
				h.send(t.Context(), c, client, late[i], random)
			}
		})
	}
	all.Wait()
	stop()
	chaos.Wait()
	testenv.Eventually(t, 10*time.Second, equal(0, func() int {
		return g.sweep(t.Context(), 100) + g.number(t, `SELECT count(*) FROM payments WHERE status = 'authorized' AND authorization_expires_at < now()`)
	}))

	result, info := porcupine.CheckOperationsVerbose(lives, h.all, 3*time.Minute)
	if result != porcupine.Ok {
		path := filepath.Join(t.ArtifactDir(), "history.html")
		t.Errorf("%d operations are explained by no life (%s): %v, %s", len(h.all), result, porcupine.VisualizePath(lives, info, path), path)
	}
	h.wantVariety(t)
	g.write.Close() // its backends report what they counted when they end
	for law, sql := range map[string]string{
		"what was captured and not refunded is the payee's": `SELECT balance_minor - (
			SELECT sum(amount_minor - released_minor - refunded_minor) FROM payments WHERE destination_account = a.id AND status = 'completed')
			FROM accounts a WHERE id = '` + to + `'`,
		"nothing deadlocked": `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`,
	} {
		if n := g.number(t, sql); n != 0 {
			t.Errorf("broken by %d: %s", n, law)
		}
	}
}

// killBackends kills one after the other of those that write.
func (g *grouped) killBackends(ctx context.Context, t *testing.T) {
	const kill = `SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
		WHERE usename = 'api_write' AND datname = current_database() ORDER BY random() LIMIT 1) x`
	for ctx.Err() == nil {
		if _, err := g.owner.Exec(ctx, kill); err != nil && ctx.Err() == nil {
			t.Error(err)
			return
		}
		pause(ctx, 500*time.Millisecond)
	}
}

// sweep returns how many authorizations it expired, as far as it knows: its backend may be killed.
func (g *grouped) sweep(ctx context.Context, limit int) int {
	n, _ := (&payments.Processor{DB: g.write}).ExpireBatch(ctx, limit)
	return n
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// wantVariety fails if something never happened: then the history says little.
func (h *history) wantVariety(t *testing.T) {
	t.Helper()
	seen := map[string]int{}
	for _, o := range h.all {
		a, answer := o.Input.(asked), o.Output.(told)
		seen[fmt.Sprintf("%s %d %s", a.action, answer.status, answer.code)]++
		seen["read "+answer.payment.status]++
		if answer.unknown && a.action != "expire" {
			seen["unknown"]++
		}
	}
	for _, want := range []string{
		"capture 200 ", "cancel 200 ", "refunds 201 ", "read expired", "unknown",
		"capture 409 invalid-state", "capture 409 authorization-expired", "capture 412 version-mismatch",
		"capture 422 amount-exceeds-authorized", "refunds 422 amount-exceeds-captured",
	} {
		if seen[want] == 0 {
			t.Errorf("%q did not happen", want)
		}
	}
	t.Log(seen)
}
