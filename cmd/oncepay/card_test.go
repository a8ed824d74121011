package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

// byCard is a payment by card to the shop's first account.
func (s *shop) byCard(more ...string) []string {
	return append([]string{"pay", "--card", "tok_visa", "--to", s.Accounts[0].ID.String(), "--currency", "USD", "--amount", "2500"}, more...)
}

// enableCards opens the clearing account, as the operator does.
func (s *shop) enableCards(t *testing.T) payments.Account {
	t.Helper()
	var made seeded
	mustJSON(t, &made, s.owner, "seed", "--tenant", "demo", "--client", "shop", "--currency", "USD", "--cards", "--credential=false")
	if made.Clearing == nil || made.Clearing.Kind != payments.Clearing {
		t.Fatalf("%+v", made)
	}
	return *made.Clearing
}

// psp ends every operation that it finds with this state, until the test ends.
func (s *shop) psp(t *testing.T, state payments.OperationState) {
	t.Helper()
	p := &payments.Processor{DB: s.db.Pool(t, "worker"), Retention: idempotency.DefaultRetention, Render: httpapi.Render}
	ended := make(chan struct{})
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop); <-ended })
	go func() {
		defer close(ended)
		for {
			claimed, err := p.ClaimOperations(t.Context(), 10, time.Minute)
			for _, o := range claimed {
				_, err = p.Record(t.Context(), []payments.Result{{OperationID: o.ID, State: state, Reference: "ch_1"}})
			}
			if err != nil && t.Context().Err() == nil {
				t.Error(err)
			}
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
}

func TestPayByCardAndWait(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	_, stderr, code := oncepay(t, s.env, s.byCard("--key", "off")...)
	if code != exitRefused || !strings.Contains(stderr, "422 cards-not-enabled: ") {
		t.Errorf("exit %d, %s", code, stderr)
	}
	clearing := s.enableCards(t)
	if again := s.enableCards(t); again.ID != clearing.ID {
		t.Errorf("made again: %+v", again)
	}
	text := must(t, s.owner, "seed", "--tenant", "demo", "--client", "shop", "--currency", "USD", "--credential=false")
	wantLines(t, text, "clearing account "+clearing.ID.String()+" 0 USD in minor units")

	// Without --wait, or when the time is over, it is processing.
	var p payments.Payment
	mustJSON(t, &p, s.env, s.byCard("--key", "a")...)
	if p.Status != payments.Processing || p.SourceAccount != clearing.ID {
		t.Errorf("%+v", p)
	}
	must(t, s.env, "get", p.ID.String()) // opens the connection that reads
	wantLines(t, must(t, s.env, "get", p.ID.String(), "--wait", "12s"), "status processing", "method card", "version 1")
	stdout, stderr, code := oncepay(t, s.env, s.byCard("--key", "a", "--wait", "100ms")...)
	if code != exitUnknown || stdout != "" || !strings.Contains(stderr, "it is still processing") || !strings.HasSuffix(stderr, "; the key is a\n") {
		t.Errorf("exit %d, %s%s", code, stdout, stderr)
	}

	s.psp(t, payments.Succeeded)
	wantLines(t, must(t, s.env, "get", p.ID.String(), "--wait", "20s"), "status completed", "method card", "settled "+at, "version 2",
		"1 payment.processing 2500 "+at, "2 payment.completed 2500 "+at)
	wantLines(t, must(t, s.env, s.byCard("--key", "a", "--wait", "20s")...), "status completed", "key a", " .the answer to an earlier attempt: it was done once.")
	wantLines(t, must(t, s.env, s.byCard("--key", "b", "--wait", "20s")...), "status completed", "key b")

	var r payments.Refund
	mustJSON(t, &r, s.env, "refund", p.ID.String(), "--amount", "500", "--wait", "20s", "--key", "c")
	if r.Status != payments.Completed {
		t.Errorf("%+v", r)
	}
	wantLines(t, must(t, s.env, "get", r.ID.String(), "--wait", "20s"), "status completed", "settled "+at)
	wantLines(t, must(t, s.env, "get", p.ID.String()), "refunded 500 USD in minor units", "left 2000 USD in minor units",
		"3 refund.completed 500 "+at+" "+r.ID.String())
	wantLines(t, must(t, s.env, s.order("--amount", "1", "--wait", "1s", "--key", "d")...), "status completed") // nothing to wait for
}

func TestCardThatIsDeclinedIsARefusal(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.enableCards(t)
	s.psp(t, payments.OperationDeclined)
	stdout, stderr, code := oncepay(t, s.env, s.byCard("--key", "a", "--wait", "20s")...)
	if code != exitRefused || !strings.HasSuffix(stderr, "oncepay: it did not go by card: declined: card-declined\n") {
		t.Errorf("exit %d, %s", code, stderr)
	}
	wantLines(t, stdout, "status declined: card-declined", "key a")
	stdout, _, code = oncepay(t, s.env, s.byCard("--key", "a", "--wait", "20s", "--json")...)
	if code != exitRefused || !strings.HasPrefix(stdout, `{`) || !strings.Contains(stdout, `"declined"`) {
		t.Errorf("exit %d, %s", code, stdout)
	}
}

// What was made is made, whatever the answers while it waits.
func TestWaitWithoutAnswersIsUnknown(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.enableCards(t)
	env := s.between(t, func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		if r.Method == http.MethodGet {
			http.Error(w, "bad gateway", http.StatusBadGateway)
			return
		}
		service.ServeHTTP(w, r)
	})
	stdout, stderr, code := oncepay(t, env, s.byCard("--key", "a", "--wait", "200ms")...)
	if code != exitUnknown || stdout != "" || !strings.HasSuffix(stderr, "; the key is a\n") {
		t.Errorf("exit %d, %s%s", code, stdout, stderr)
	}
	if _, _, code := oncepay(t, env, "get", uuid.NewString(), "--wait", "200ms"); code != exitFailed {
		t.Errorf("get: exit %d", code)
	}
}

func TestPayTakesOneOfAccountAndCard(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	from := []string{"--from", s.Accounts[1].ID.String()}
	for want, args := range map[string][]string{
		"either --from or --card is needed":                     s.byCard(from...),
		"--hold needs --from: a payment by card cannot be held": s.byCard("--hold"),
		"the token that the payment service provider gave":      s.byCard("--card", "4242 4242 4242 4242"),
		"either --from or --card is needed ":                    {"pay", "--to", s.Accounts[0].ID.String(), "--currency", "USD", "--amount", "1"},
		`it must be a duration, such as 30s or 2m`:              s.byCard("--wait", "soon"),
		"--cards needs --currency":                              {"seed", "--tenant", "demo", "--client", "shop", "--cards"},
	} {
		env := s.env
		if args[0] == "seed" {
			env = s.owner
		}
		stdout, stderr, code := oncepay(t, env, args...)
		if code != exitFailed || stdout != "" || !strings.Contains(stderr, strings.TrimSpace(want)) {
			t.Errorf("%v: exit %d, %s%s", args, code, stdout, stderr)
		}
	}
}
