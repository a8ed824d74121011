package fakepsp_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/oncepay/oncepay/internal/fakepsp"
	"github.com/oncepay/oncepay/internal/testenv"
)

// TestFault makes the same charge twice: the first call meets the fault.
func TestFault(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		faults   fakepsp.Faults
		token    string
		status   int  // of the first call; 0: no answer
		executed bool // by the first call
		counted  string
	}{
		"lose reply":         {fakepsp.Faults{LoseReply: 1}, "tok_visa", 0, true, "replies_lost"},
		"error before":       {fakepsp.Faults{ErrorBefore: 1}, "tok_visa", 500, false, "errors_before"},
		"error after":        {fakepsp.Faults{ErrorAfter: 1}, "tok_visa", 500, true, "errors_after"},
		"down, unavailable":  {fakepsp.Faults{Down: "unavailable"}, "tok_visa", 503, false, ""},
		"down, reset":        {fakepsp.Faults{Down: "reset"}, "tok_visa", 0, false, ""},
		"token lose reply":   {fakepsp.Faults{}, "tok_lose_reply", 0, true, "replies_lost"},
		"token error before": {fakepsp.Faults{}, "tok_error_before", 500, false, "errors_before"},
		"token error after":  {fakepsp.Faults{}, "tok_error_after", 500, true, "errors_after"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			p := open(t, dir, fakepsp.Options{Faults: c.faults})

			if a := chargeToken(p, "k", c.token); a.status != c.status {
				t.Errorf("first %s, want %d", a, c.status)
			}
			if err := p.SetFaults(fakepsp.Faults{}); err != nil {
				t.Fatal(err)
			}
			if executed := len(found(t, p, "k")) == 1; executed != c.executed {
				t.Errorf("executed: %t, want %t", executed, c.executed)
			}

			again := chargeToken(p, "k", c.token)
			charged(t, again)
			if replayed := again.header.Get("Idempotent-Replayed") == "true"; replayed != c.executed {
				t.Errorf("replayed: %t, want %t", replayed, c.executed)
			}
			if n := p.Totals().ChargesSucceeded; n != 1 {
				t.Errorf("%d charges", n)
			}

			// Counts are in the books.
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			p = open(t, dir, fakepsp.Options{})
			for name, n := range p.Totals().Injected {
				if name == c.counted && n != 1 || name != c.counted && n != 0 {
					t.Errorf("%s is %d", name, n)
				}
			}
		})
	}
}

// TestLostReplyIsAClosedConnection looks at it as clients do.
func TestLostReplyIsAClosedConnection(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]fakepsp.Faults{"lost": {LoseReply: 1}, "down": {Down: "reset"}} {
		server := httptest.NewServer(withFaults(t, f))
		defer server.Close()

		r, err := http.NewRequest("POST", server.URL+"/v1/charges",
			strings.NewReader(order(1, "tok_visa", "o")))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+apiKey)
		r.Header.Set("Idempotency-Key", "k")

		answer, err := http.DefaultClient.Do(r)
		if err == nil {
			answer.Body.Close()
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSlow runs in the time of a bubble: its pauses cost nothing and are exact.
func TestSlow(t *testing.T) {
	t.Parallel()
	const latency, slow = 50 * time.Millisecond, 30 * time.Second

	for name, c := range map[string]struct {
		faults fakepsp.Faults
		token  string
		want   time.Duration
	}{
		"latency": {fakepsp.Faults{Latency: fakepsp.Duration(latency)}, "tok_visa", latency},
		"slow":    {fakepsp.Faults{Slow: 1}, "tok_visa", slow},
		"so slow": {fakepsp.Faults{Slow: 1, SlowFor: fakepsp.Duration(time.Hour)}, "tok_visa", time.Hour},
		"token":   {fakepsp.Faults{}, "tok_slow", slow},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := withFaults(t, c.faults)
				start := time.Now()
				charged(t, chargeToken(p, "k", c.token))
				if took := time.Since(start); took != c.want {
					t.Errorf("took %s, want %s", took, c.want)
				}
			})
		})
	}
}

// wait passes time in a bubble, which takes none, and lets everything settle.
func wait(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestSlowBeforeAndAfterExecuting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := withFaults(t, fakepsp.Faults{Slow: 1})
		const n = 40
		for i := range n {
			go charge(p, fmt.Sprint("k", i))
		}
		wait(time.Second) // all are in their pause then

		executed := p.Totals().ChargesSucceeded
		if executed < n/4 || executed > n*3/4 {
			t.Errorf("%d of %d are executed", executed, n)
		}
		for i := range n {
			key := fmt.Sprint("k", i)
			// Executed: a retry is answered. Not yet: its key is in use.
			if len(found(t, p, key)) == 0 {
				if a := charge(p, key); a.status != 409 {
					t.Errorf("%s: %s", key, a)
				}
			}
		}

		// What is in hand ends at once, and is executed.
		p.Drain()
		synctest.Wait()
		if executed := p.Totals().ChargesSucceeded; executed != n {
			t.Errorf("%d are executed in the end", executed)
		}
	})
}

func TestDeclines(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		faults fakepsp.Faults
		amount int
		status int
	}{
		"all":       {fakepsp.Faults{Decline: 1}, 100, 402},
		"too large": {fakepsp.Faults{DeclineAbove: 100}, 101, 402},
		"not yet":   {fakepsp.Faults{DeclineAbove: 100}, 100, 201},
	} {
		p := withFaults(t, c.faults)
		a := call(p, "POST", "/v1/charges", "k", order(c.amount, "tok_visa", "o"))
		if a.status != c.status {
			t.Errorf("%s: %s", name, a)
		}
	}
}

func TestRateLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := withFaults(t, fakepsp.Faults{RateLimit: 2})

		for second := range 3 {
			for i, want := range []int{201, 201, 429, 429} {
				a := charge(p, fmt.Sprint(second, " ", i))
				if a.status != want {
					t.Errorf("call %d of second %d: %s", i, second, a)
				}
				if want == 429 && (a.header.Get("Retry-After") != "1" || code(t, a) != "rate_limited") {
					t.Errorf("%s, %v", a, a.header)
				}
			}
			wait(time.Second)
		}
		if n := p.Totals().Injected["rate_limited"]; n != 6 {
			t.Errorf("%d counted", n)
		}
	})
}

func TestForgottenKeyExecutesAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := withFaults(t, fakepsp.Faults{ForgetKeysAfter: fakepsp.Duration(time.Hour)})

		first := charged(t, charge(p, "k"))
		wait(time.Hour)
		if again := charged(t, charge(p, "k")); again.ID != first.ID {
			t.Error("forgotten too early")
		}

		wait(time.Second)
		if data := found(t, p, "k"); len(data) != 1 {
			t.Errorf("by the forgotten key: %v", data)
		}
		if again := charged(t, charge(p, "k")); again.ID == first.ID {
			t.Error("not forgotten")
		}

		// The books tell what that means.
		if data := found(t, p, "k"); len(data) != 2 || data[0].ID != first.ID {
			t.Errorf("by key: %v", data)
		}
		if n := p.Totals().OperationsTwice; n != 1 {
			t.Errorf("%d operations twice", n)
		}
	})
}

func TestSharesAreKept(t *testing.T) {
	t.Parallel()
	p := withFaults(t, fakepsp.Faults{
		LoseReply: 0.2, ErrorBefore: 0.1, ErrorAfter: 0.05, Decline: 0.3})
	const n = 2000
	for i := range n {
		charge(p, fmt.Sprint(i))
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}

	totals := p.Totals()
	executed := float64(totals.ChargesSucceeded + totals.ChargesDeclined)
	for name, c := range map[string]struct{ got, of, share float64 }{
		"lost":         {float64(totals.Injected["replies_lost"]), n, 0.2},
		"error before": {float64(totals.Injected["errors_before"]), n, 0.1},
		"error after":  {float64(totals.Injected["errors_after"]), n, 0.05},
		"executed":     {executed, n, 0.9},
		"declined":     {float64(totals.ChargesDeclined), executed, 0.3},
	} {
		// Five standard deviations; the seed is the same each time anyway.
		if most := 5 * math.Sqrt(c.of*c.share*(1-c.share)); math.Abs(c.got-c.of*c.share) > most {
			t.Errorf("%s: %v of %v", name, c.got, c.of)
		}
	}
}

func TestSeedRepeatsARun(t *testing.T) {
	t.Parallel()
	run := func(seed uint64) (statuses []int) {
		p := open(t, t.TempDir(), fakepsp.Options{Seed: seed, Faults: fakepsp.Faults{
			LoseReply: 0.2, ErrorBefore: 0.2, ErrorAfter: 0.2, Decline: 0.2}})
		for i := range 100 {
			statuses = append(statuses, charge(p, fmt.Sprint(i)).status)
		}
		return statuses
	}

	one := run(1)
	if diff := cmp.Diff(one, run(1)); diff != "" {
		t.Errorf("the same seed: %s", diff)
	}
	if cmp.Equal(one, run(2)) {
		t.Error("another seed draws the same")
	}
}

func TestAdminChangesFaults(t *testing.T) {
	t.Parallel()
	p := withFaults(t, fakepsp.Faults{Decline: 0.5})

	a := call(p, "PUT", "/admin/faults", "", `{"lose_reply":0.5,"latency":"20ms"}`)
	want := fakepsp.Faults{LoseReply: 0.5, Latency: fakepsp.Duration(20 * time.Millisecond)}
	for _, body := range []string{a.body, call(p, "GET", "/admin/faults", "", "").body} {
		if diff := cmp.Diff(want, read[fakepsp.Faults](t, body)); diff != "" {
			t.Error(diff)
		}
	}

	for _, body := range []string{
		`{"lose_reply":1.1}`, `{"lose_reply":-1}`, `{"down":"yes"}`, `{"latency":"-1s"}`,
		`{"latency":5}`, `{"lost":1}`, `{"rate_limit":-1}`, `{"decline_above":-1}`, `nonsense`, ``,
		`{"lose_reply":0.5,"error_after":0.6}`,
	} {
		if a := call(p, "PUT", "/admin/faults", "", body); a.status != 400 {
			t.Errorf("%s: %s", body, a)
		}
	}
	if diff := cmp.Diff(want, p.Faults()); diff != "" {
		t.Errorf("after refusals: %s", diff)
	}

	// While it is down it can be repaired.
	if err := p.SetFaults(fakepsp.Faults{Down: "reset"}); err != nil {
		t.Fatal(err)
	}
	if a := call(p, "GET", "/readyz", "", ""); a.status != 200 {
		t.Errorf("ready: %s", a)
	}
	if a := call(p, "PUT", "/admin/faults", "", `{}`); a.status != 200 {
		t.Errorf("repair: %s", a)
	}
	charged(t, charge(p, "k"))
}

func TestAdminShowsBooks(t *testing.T) {
	t.Parallel()
	p := withFaults(t, fakepsp.Faults{})
	paid := charged(t, charge(p, "k"))
	refund(p, "r", paid.ID, 500)
	call(p, "POST", "/v1/charges", "k2", order(1, "tok_visa", "operation of k")) // charged twice
	chargeToken(p, "k3", "tok_lose_reply")

	var books fakepsp.Books
	testenv.Eventually(t, soon, func() error {
		books = read[fakepsp.Books](t, call(p, "GET", "/admin/books", "", "").body)
		return injected(p, "replies_lost", 1)
	})
	if len(books.Charges) != 3 || books.Charges[0].Key != "k" || books.Charges[0].ID != paid.ID ||
		books.Charges[0].Refunded != 500 || len(books.Refunds) != 1 || books.Refunds[0].Key != "r" {
		t.Errorf("%+v", books)
	}

	want := fakepsp.Totals{
		ChargesSucceeded: 3, RefundsSucceeded: 1, OperationsTwice: 1,
		Charged: map[string]int64{"usd": 5001}, Refunded: map[string]int64{"usd": 500},
		Injected: map[string]int64{"replies_lost": 1, "errors_before": 0, "errors_after": 0,
			"slow_calls": 0, "rate_limited": 0, "webhooks_doubled": 0, "webhooks_shuffled": 0},
	}
	totals := read[fakepsp.Totals](t, call(p, "GET", "/admin/totals", "", "").body)
	if diff := cmp.Diff(want, totals); diff != "" {
		t.Error(diff)
	}
}
