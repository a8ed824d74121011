package fakepsp_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/oncepay/oncepay/internal/fakepsp"
	"github.com/oncepay/oncepay/internal/testenv"
)

// delivered is a webhook as its receiver gets it.
type delivered struct {
	ID   string
	Type string
	Data struct {
		Object struct {
			ID, Object, Status string
			Metadata           map[string]string
		}
	}
	at time.Time
}

// receiver checks signatures and keeps what it accepts, in order.
type receiver struct {
	url  string
	deny func(delivered) bool // answer 503; nil: never

	mu   sync.Mutex
	got  []delivered
	seen int // accepted or not
}

func receive(t *testing.T, deny func(delivered) bool) *receiver {
	t.Helper()
	signer, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}

	r := &receiver{deny: deny}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return // the sender has stopped
		}
		if err := signer.Verify(body, req.Header); err != nil {
			t.Errorf("signature: %v", err)
		}

		d := read[delivered](t, string(body))
		d.at = time.Now()
		if d.ID != req.Header.Get("webhook-id") {
			t.Errorf("event %s has the header %s", d.ID, req.Header.Get("webhook-id"))
		}

		r.mu.Lock()
		defer r.mu.Unlock()
		r.seen++
		if r.deny != nil && r.deny(d) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		r.got = append(r.got, d)
	}))
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

// all waits until the provider has nothing left to send, and n webhooks were accepted.
func (r *receiver) all(t *testing.T, p *fakepsp.PSP, n int) (got []delivered) {
	t.Helper()
	testenv.Eventually(t, soon, func() error {
		r.mu.Lock()
		got = slices.Clone(r.got)
		r.mu.Unlock()
		if pending := p.Totals().WebhooksPending; pending > 0 || len(got) < n {
			return fmt.Errorf("%d of %d are accepted, %d pending", len(got), n, pending)
		}
		return nil
	})
	if len(got) != n {
		t.Errorf("%d webhooks were accepted, want %d", len(got), n)
	}
	return got
}

func sending(t *testing.T, dir string, r *receiver, f fakepsp.Faults) *fakepsp.PSP {
	t.Helper()
	return open(t, dir, fakepsp.Options{WebhookURL: r.url, WebhookSecret: secret, Faults: f})
}

func TestWebhooks(t *testing.T) {
	t.Parallel()
	r := receive(t, nil)
	p := sending(t, t.TempDir(), r, fakepsp.Faults{})

	paid := charged(t, charge(p, "paid")).ID
	r.all(t, p, 2)
	refund(p, "back", paid, 1)
	r.all(t, p, 4)
	chargeToken(p, "denied", "tok_declined")
	got := r.all(t, p, 6)

	for i, want := range []string{"charge.created", "charge.succeeded", "refund.created",
		"refund.succeeded", "charge.created", "charge.declined"} {
		o := got[i].Data.Object
		kind, _, _ := strings.Cut(want, ".")
		if got[i].Type != want || o.Object != kind || i < 2 && o.ID != paid {
			t.Errorf("event %d: %+v, want %s", i, got[i], want)
		}
	}

	// A replay is no event.
	charge(p, "paid")
	r.all(t, p, 6)
}

func TestWebhooksOfOneObjectAreInOrder(t *testing.T) {
	t.Parallel()
	// Each "created" fails at first: what is behind it waits.
	denied := map[string]bool{}
	r := receive(t, func(d delivered) bool {
		first := strings.HasSuffix(d.Type, ".created") && !denied[d.ID]
		denied[d.ID] = true
		return first
	})
	p := sending(t, t.TempDir(), r, fakepsp.Faults{})

	const n = 50
	for i := range n {
		charge(p, fmt.Sprint(i))
	}
	created := map[string]bool{}
	for _, d := range r.all(t, p, 2*n) {
		id := d.Data.Object.ID
		if d.Type == "charge.created" {
			created[id] = true
		} else if !created[id] {
			t.Errorf("%s of %s came first", d.Type, id)
		}
	}
}

func TestWebhooksDoubled(t *testing.T) {
	t.Parallel()
	r := receive(t, nil)
	p := sending(t, t.TempDir(), r, fakepsp.Faults{WebhookDouble: 1})
	charge(p, "k")

	times := map[string]int{}
	for _, d := range r.all(t, p, 4) {
		times[d.ID]++
	}
	for id, n := range times {
		if n != 2 {
			t.Errorf("%s came %d times", id, n)
		}
	}
	testenv.Eventually(t, soon, func() error { return injected(p, "webhooks_doubled", 1) })
}

func TestWebhooksShuffled(t *testing.T) {
	t.Parallel()
	r := receive(t, nil)
	p := sending(t, t.TempDir(), r, fakepsp.Faults{WebhookShuffle: 1})
	const n = 30
	for i := range n {
		charge(p, fmt.Sprint(i))
	}

	early, created := 0, map[string]bool{}
	for _, d := range r.all(t, p, 2*n) {
		id := d.Data.Object.ID
		if d.Type == "charge.created" {
			created[id] = true
		} else if !created[id] {
			early++
		}
	}
	if early == 0 || early == n {
		t.Errorf("%d of %d ends came before their beginnings", early, n)
	}
	testenv.Eventually(t, soon, func() error { return injected(p, "webhooks_shuffled", n) })
}

func TestWebhooksLate(t *testing.T) {
	t.Parallel()
	const delay = 300 * time.Millisecond
	r := receive(t, nil)
	p := sending(t, t.TempDir(), r, fakepsp.Faults{WebhookDelay: fakepsp.Duration(delay)})

	before := time.Now()
	charge(p, "k")
	if took := r.all(t, p, 2)[0].at.Sub(before); took < delay {
		t.Errorf("after %s", took)
	}
}

func TestWebhooksAfterARestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var mu sync.Mutex
	away := true
	r := receive(t, func(d delivered) bool {
		mu.Lock()
		defer mu.Unlock()
		return away && d.Data.Object.Metadata["operation_id"] != "operation of before"
	})

	p := sending(t, dir, r, fakepsp.Faults{})
	charge(p, "before")
	r.all(t, p, 2)
	const n = 20
	for i := range n {
		charge(p, fmt.Sprint(i))
	}
	testenv.Eventually(t, soon, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.seen < 2+n {
			return errors.New("not all were tried")
		}
		return nil
	})
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}

	mu.Lock()
	away = false
	mu.Unlock()

	// Without a URL nothing is sent, nor forgotten.
	p = open(t, dir, fakepsp.Options{})
	charge(p, "without")
	if pending := p.Totals().WebhooksPending; pending != 2*n {
		t.Errorf("%d are pending", pending)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}

	p = sending(t, dir, r, fakepsp.Faults{})
	times := map[string]int{}
	for _, d := range r.all(t, p, 2+2*n) {
		times[d.ID]++
	}
	if len(times) != 2+2*n {
		t.Errorf("%d events", len(times))
	}
}

func TestHangingReceiverDelaysNoCharge(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	defer server.Close()
	defer close(hang)

	p := sending(t, t.TempDir(), &receiver{url: server.URL}, fakepsp.Faults{})
	for i := range 100 { // more than may be sent at a time
		charged(t, charge(p, fmt.Sprint(i)))
	}
	if pending := p.Totals().WebhooksPending; pending != 200 {
		t.Errorf("%d are pending", pending)
	}
	if err := p.Close(); err != nil { // does not wait for the receiver
		t.Fatal(err)
	}
}

func TestRedirectIsNoSuccess(t *testing.T) {
	t.Parallel()
	r := receive(t, nil)
	var calls sync.Map
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		calls.Store(req.Header.Get("webhook-id"), true)
		http.Redirect(w, req, r.url, http.StatusTemporaryRedirect)
	}))
	defer server.Close()

	p := sending(t, t.TempDir(), &receiver{url: server.URL}, fakepsp.Faults{})
	charge(p, "k")
	testenv.Eventually(t, soon, func() error {
		called := errors.New("not called")
		calls.Range(func(any, any) bool { called = nil; return false })
		return called
	})
	if pending := p.Totals().WebhooksPending; pending != 2 || len(r.got) != 0 {
		t.Errorf("%d are pending, %v", pending, r.got)
	}
}

func TestWrongOptions(t *testing.T) {
	t.Parallel()
	const url = "http://there.test"
	for want, o := range map[string]fakepsp.Options{
		"the API key is not set":            {},
		"lose_reply must be a share":        {APIKey: "k", Faults: fakepsp.Faults{LoseReply: 2}},
		"the webhook URL must be http://":   {APIKey: "k", WebhookURL: "x", WebhookSecret: secret},
		"the webhook secret is not set":     {APIKey: "k", WebhookURL: url},
		"webhook secret: unable to create ": {APIKey: "k", WebhookURL: url, WebhookSecret: "x"},
	} {
		if _, err := fakepsp.Open(t.TempDir(), o); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
