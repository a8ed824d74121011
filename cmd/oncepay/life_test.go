package main

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/payments"
)

// hold authorizes 25.00 USD from the shop's first account to its second.
func (s *shop) hold(t *testing.T, more ...string) payments.Payment {
	t.Helper()
	var p payments.Payment
	mustJSON(t, &p, s.env, append(s.order("--amount", "2500", "--hold", "--key", uuid.NewString()), more...)...)
	if p.Status != payments.Authorized || p.AuthorizationExpiresAt == nil {
		t.Fatalf("not held: %+v", p)
	}
	return p
}

// wantLines reports each line that a text lacks. Columns are one space apart there.
func wantLines(t *testing.T, text string, lines ...string) {
	t.Helper()
	plain := regexp.MustCompile(` +`).ReplaceAllString(text, " ")
	for _, line := range lines {
		if !regexp.MustCompile(`(?m)^` + line + ` ?$`).MatchString(plain) {
			t.Errorf("lacks %q:\n%s", line, text)
		}
	}
}

const at = `20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ`

func TestGetShowsTheHistoryOfAPayment(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	id := s.hold(t).ID.String()
	payer := s.Accounts[0].ID.String()

	wantLines(t, must(t, s.env, "get", id), "status authorized", "expires "+at, "version 1")
	wantLines(t, must(t, s.env, "get", payer),
		"balance 100000 USD in minor units", "held 2500 USD in minor units", "available 97500 USD in minor units")

	wantLines(t, must(t, s.env, "capture", id, "--amount", "2000", "--key", "a"),
		"status completed", "amount 2500 USD in minor units", "captured 2000 USD in minor units", "key a")
	wantLines(t, must(t, s.env, "get", payer),
		"balance 98000 USD in minor units", "held 0 USD in minor units", "available 98000 USD in minor units")

	var r payments.Refund
	mustJSON(t, &r, s.env, "refund", id, "--amount", "500", "--reason", "one came damaged", "--key", "b")
	wantLines(t, must(t, s.env, "get", r.ID.String()), "refund "+r.ID.String(), "status completed",
		"amount 500 USD in minor units", "payment "+id, "to "+payer, "reason one came damaged")

	wantLines(t, must(t, s.env, "get", id), "status completed", "captured 2000 USD in minor units",
		"refunded 500 USD in minor units", "left 1500 USD in minor units", "version 3",
		"VERSION EVENT AMOUNT AT REFUND",
		"1 payment.authorized 2500 "+at, "2 payment.completed 2000 "+at, "3 refund.completed 500 "+at+" "+r.ID.String())

	var all history
	if mustJSON(t, &all, s.env, "get", id); len(all.Refunds) != 1 || all.Refunds[0].Reason != "one came damaged" || all.Version != 3 {
		t.Errorf("as JSON: %+v", all)
	}
}

func TestGetShowsAPaymentThatWasCanceled(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	id := s.hold(t, "--hold-for", "24h").ID.String()
	wantLines(t, must(t, s.env, "cancel", id, "--key", "a"), "status canceled", "key a")
	wantLines(t, must(t, s.env, "get", id), "status canceled", "version 2",
		"1 payment.authorized 2500 "+at, "2 payment.canceled 2500 "+at)
}

func TestHoldExpiresWhenAsked(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for flag, want := range map[string]time.Duration{"": payments.DefaultAuthorization, "24h": 24 * time.Hour} {
		var more []string
		if flag != "" {
			more = []string{"--hold-for", flag}
		}
		p := s.hold(t, more...)
		if got := p.AuthorizationExpiresAt.Sub(p.ProcessedAt); got != want {
			t.Errorf("--hold-for %s: %s", flag, got)
		}
	}
}

// The service shows the newest refunds only. What it leaves out must not look as if it never was.
func TestGetSaysWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	var p payments.Payment
	mustJSON(t, &p, s.env, s.order("--amount", "2500", "--key", "order-1")...)
	for range 22 {
		must(t, s.env, "refund", p.ID.String(), "--amount", "1", "--key", uuid.NewString())
	}

	out := must(t, s.env, "get", p.ID.String())
	wantLines(t, out, "1 payment.completed 2500 "+at, "… 2 earlier refunds", "refunded 22 USD in minor units")
	if n := strings.Count(out, "refund.completed"); n != 20 {
		t.Errorf("%d refunds:\n%s", n, out)
	}
	if n := strings.Count(out, "earlier refunds"); n != 1 {
		t.Errorf("said %d times:\n%s", n, out)
	}
}

func TestTheSameKeyCapturesCancelsAndRefundsOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	captured := s.hold(t).ID.String()
	for _, args := range [][]string{
		{"capture", captured, "--amount", "2000"},
		{"refund", captured, "--amount", "1500"}, // a second one would be refused: more than is left
		{"cancel", s.hold(t).ID.String(), "--if-version", "1"},
	} {
		args = append(args, "--key", args[0])
		first := must(t, s.env, append(args, "--json")...)
		if again := must(t, s.env, append(args, "--json")...); again != first {
			t.Errorf("%s again:\n%s\nfirst:\n%s", args[0], again, first)
		}
		if text := must(t, s.env, args...); !strings.Contains(text, "it was done once") {
			t.Errorf("%s as text:\n%s", args[0], text)
		}
	}
	if n := s.count(t, `SELECT count(*) FROM refunds`); n != 1 {
		t.Errorf("%d refunds", n)
	}
}

func TestALaterCommandThatIsRefusedIsOneLine(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	held, completed := s.hold(t).ID.String(), s.hold(t).ID.String()
	must(t, s.env, "capture", completed, "--amount", "2000", "--key", "ok")

	for begins, args := range map[string][]string{
		"404 not-found: ":                 {"capture", uuid.NewString()},
		"412 version-mismatch: ":          {"cancel", held, "--if-version", "7"},
		"409 invalid-state: ":             {"cancel", completed},
		"422 amount-exceeds-authorized: ": {"capture", held, "--amount", "2501"},
		"422 amount-exceeds-captured: ":   {"refund", completed, "--amount", "2001"},
	} {
		stdout, stderr, code := oncepay(t, s.env, append(args, "--key", args[0]+begins[:3])...)
		if code != exitRefused || stdout != "" || !strings.HasPrefix(stderr, "oncepay: "+begins) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%v: exit %d, %s%s", args, code, stdout, stderr)
		}
	}
}

func TestLostAnswerToACaptureIsFoundAgain(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	id := s.hold(t).ID.String()
	lost := false
	var conditions []string
	env := s.between(t, func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		conditions = append(conditions, r.Header.Get("If-Match"))
		if !lost {
			lost = true
			service.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		service.ServeHTTP(w, r)
	})

	// The condition held before the first attempt, and no longer holds for the second.
	out := must(t, env, "capture", id, "--if-version", "1", "--key", "order-1")
	if !strings.Contains(out, "it was done once") || !slices.Equal(conditions, []string{`"1"`, `"1"`}) {
		t.Errorf("If-Match %q:\n%s", conditions, out)
	}
}

// The clock ends an authorization, not the sweep: here is none.
func TestLateCaptureIsRefused(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	id := s.hold(t).ID.String()
	_, err := s.db.Pool(t, "").Exec(t.Context(), `UPDATE payments SET authorization_expires_at = clock_timestamp() WHERE id = $1`, id)
	if err != nil {
		t.Fatal(err)
	}

	_, stderr, code := oncepay(t, s.env, "capture", id, "--key", "late")
	if code != exitRefused || !strings.HasPrefix(stderr, "oncepay: 409 authorization-expired: ") {
		t.Errorf("exit %d, %s", code, stderr)
	}
	if n := s.count(t, `SELECT count(*) FROM payments WHERE id = $1 AND status = 'authorized'`, id); n != 1 {
		t.Error("it was swept")
	}
}
