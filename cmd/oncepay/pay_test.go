package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/oncepay/oncepay/internal/payments"
)

// order is a payment of the shop's first account to its second.
func (s *shop) order(more ...string) []string {
	return append([]string{"pay", "--from", s.Accounts[0].ID.String(), "--to", s.Accounts[1].ID.String(), "--currency", "USD"}, more...)
}

func TestAPaymentIsMadeUnderAKeyThatIsSaidFirst(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	stdout, stderr, code := oncepay(t, s.env, s.order("--amount", "2500", "--description", "two books", "--reference", "order-1")...)
	said := regexp.MustCompile(`^oncepay: the key is (\S+): --key repeats this request under it\n$`).FindStringSubmatch(stderr)
	if code != exitDone || said == nil {
		t.Fatalf("exit %d, %s%s", code, stdout, stderr)
	}
	for _, want := range []string{"status       completed\n", "amount       2500 USD in minor units\n", "description  two books\n", "reference    order-1\n", "Z\n", said[1]} {
		if !strings.Contains(stdout, want) {
			t.Errorf("stdout lacks %q:\n%s", want, stdout)
		}
	}
	if n := s.count(t, `SELECT count(*) FROM payments WHERE idempotency_key = $1 AND client_reference = 'order-1' AND amount_minor = 2500`, said[1]); n != 1 {
		t.Errorf("%d payments under the key", n)
	}
}

func TestTheSameKeyPaysOnceAndShowsTheSameAnswer(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	first := must(t, s.env, s.order("--amount", "2500", "--key", "order-1", "--json")...)
	if again := must(t, s.env, s.order("--amount", "2500", "--key", `"order-1"`, "--json")...); again != first {
		t.Errorf("again:\n%s\nfirst:\n%s", again, first)
	}
	if text := must(t, s.env, s.order("--amount", "2500", "--key", "order-1")...); !strings.Contains(text, "it was done once") {
		t.Errorf("as text:\n%s", text)
	}
	if n := s.count(t, `SELECT count(*) FROM payments WHERE route <> 'oncepay seed'`); n != 1 {
		t.Errorf("%d payments", n)
	}
}

func TestARefusalIsOneLineThatSaysWhatToDoNext(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	must(t, s.env, s.order("--amount", "1", "--key", "taken")...)
	for name, c := range map[string]struct {
		env         environment
		args        []string
		begins, end string
	}{
		"too little money":    {s.env, s.order("--amount", "100000000", "--key", "dear"), "402 insufficient-funds: ", "This key is spent: try again later or changed, under a new key."},
		"a key that is taken": {s.env, s.order("--amount", "2", "--key", "taken"), "422 idempotency-key-reused: ", "This key is spent: try again later or changed, under a new key."},
		"another currency":    {s.env, s.order("--amount", "1", "--currency", "EUR", "--key", "euro"), "422 currency-mismatch: ", "Repeating it is of no use."},
	} {
		stdout, stderr, code := oncepay(t, c.env, c.args...)
		if code != exitRefused || stdout != "" || !strings.HasPrefix(stderr, "oncepay: "+c.begins) || !strings.HasSuffix(stderr, c.end+"\n") || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit %d, %s%s", name, code, stdout, stderr)
		}
		if strings.Contains(stderr, c.env["ONCEPAY_TOKEN"]) {
			t.Errorf("%s: the token is shown", name)
		}
		var problem struct{ Code string }
		stdout, _, code = oncepay(t, c.env, append(c.args, "--json")...)
		if err := json.Unmarshal([]byte(stdout), &problem); code != exitRefused || err != nil || !strings.Contains(c.begins, problem.Code) {
			t.Errorf("%s: exit %d, %v\n%s", name, code, err, stdout)
		}
	}
}

// Without --key there was no earlier run, so a refusal that is not about the key is the last word.
func TestPayRefusedBeforeTheKey(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	var c credential
	mustJSON(t, &c, s.owner, "credentials", "create", "--tenant", "demo", "--client", "shop")
	must(t, s.owner, "credentials", "revoke", c.ID)
	revoked := environment{"ONCEPAY_URL": s.api.URL, "ONCEPAY_TOKEN": c.Token}

	_, stderr, code := oncepay(t, revoked, s.order("--amount", "1")...)
	if code != exitRefused || !strings.Contains(stderr, "401 unauthorized: ") {
		t.Errorf("a key of its own: exit %d, %s", code, stderr)
	}

	_, stderr, code = oncepay(t, revoked, s.order("--amount", "1", "--key", "late")...)
	if code != exitUnknown || !strings.Contains(stderr, "401 unauthorized: ") || !strings.HasSuffix(stderr, "; the key is late\n") {
		t.Errorf("a key that was given: exit %d, %s", code, stderr)
	}
}

// between puts a handler before the shop's service.
func (s *shop) between(t *testing.T, handle func(w http.ResponseWriter, r *http.Request, service http.Handler)) environment {
	t.Helper()
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handle(w, r, s.api.Config.Handler) }))
	t.Cleanup(front.Close)
	return environment{"ONCEPAY_URL": front.URL, "ONCEPAY_TOKEN": s.Token}
}

func TestAnAnswerThatWasLostOnTheWayPaysOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	var requests atomic.Int32
	env := s.between(t, func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		if requests.Add(1) == 1 {
			service.ServeHTTP(httptest.NewRecorder(), r) // it pays
			panic(http.ErrAbortHandler)                  // and nobody hears of it
		}
		service.ServeHTTP(w, r)
	})
	out := must(t, env, s.order("--amount", "2500", "--key", "order-1")...)
	if !strings.Contains(out, "it was done once") || requests.Load() != 2 {
		t.Errorf("after %d requests:\n%s", requests.Load(), out)
	}
	if n := s.count(t, `SELECT count(*) FROM payments WHERE route <> 'oncepay seed'`); n != 1 {
		t.Errorf("%d payments", n)
	}
}

// record is a stderr that can be read while the command runs.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(b)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

func TestWhoeverIsInterruptedHasTheKey(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var stderr record
	var sent, known string
	env := s.between(t, func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		sent, known = r.Header.Get("Idempotency-Key"), stderr.String()
		interrupt() // as Ctrl-C does
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	var stdout bytes.Buffer
	code := run(ctx, s.order("--amount", "2500"), func(name string) string { return env[name] }, &stdout, &stderr)
	if sent == "" || !strings.Contains(known, sent) {
		t.Errorf("key %q was sent; known before: %q", sent, known)
	}
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	if code != exitUnknown || stdout.Len() > 0 || len(lines) != 2 || !strings.Contains(lines[1], "outcome unknown: repeat it with the same key") || !strings.HasSuffix(lines[1], "; the key is "+sent) {
		t.Errorf("exit %d, %s%s", code, stdout.String(), stderr.String())
	}
}

func TestWhenTimeIsUpTheOutcomeIsUnknown(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	nobody := environment{"ONCEPAY_URL": "http://127.0.0.1:1", "ONCEPAY_TOKEN": s.Token}
	elsewhere := s.between(t, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		_ = json.NewEncoder(w).Encode(payments.Payment{Status: payments.Completed}) // no service of ours
	})
	for _, env := range []environment{nobody, elsewhere} {
		stdout, stderr, code := oncepay(t, env, s.order("--amount", "1", "--key", "order-1", "--timeout", "300ms")...)
		if code != exitUnknown || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.HasSuffix(stderr, "; the key is order-1\n") || strings.Contains(stderr, s.Token) {
			t.Errorf("exit %d, %s%s", code, stdout, stderr)
		}
	}
}

// full is a file on a disk that has no room left.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestAPaymentThatCannotBeShownIsToBeRepeatedUnderItsKey(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	getenv := func(name string) string { return s.env[name] }
	for _, key := range []string{"order-1", "order-2"} {
		args := s.order("--amount", "2500", "--key", key)
		if key == "order-2" {
			args = append(args, "--json")
		}
		var stderr bytes.Buffer
		if code := run(t.Context(), args, getenv, full{}, &stderr); code != exitUnknown ||
			!strings.HasPrefix(stderr.String(), "oncepay: it was done, but the answer could not be written: repeat it with the same key") ||
			!strings.HasSuffix(stderr.String(), "; the key is "+key+"\n") || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%s: exit %d, %s", key, code, stderr.String())
		}
		must(t, s.env, args...)
	}
	if n := s.count(t, `SELECT count(*) FROM payments WHERE route <> 'oncepay seed'`); n != 2 {
		t.Errorf("%d payments", n)
	}
	var stderr bytes.Buffer
	refused := s.order("--amount", "100000000", "--key", "dear", "--json")
	if code := run(t.Context(), refused, getenv, full{}, &stderr); code != exitRefused ||
		!strings.HasPrefix(stderr.String(), "oncepay: 402 insufficient-funds: ") || !strings.Contains(stderr.String(), "no space left") {
		t.Errorf("a refusal: exit %d, %s", code, stderr.String())
	}
}

func TestAReaderThatWentAwayDoesNotHideThatItWasPaid(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer write.Close()
	read.Close()
	stderr, code := process(t, s.env, write, s.order("--amount", "2500", "--key", "order-1")...)
	if code != exitUnknown || !strings.Contains(stderr, "it was done") || !strings.HasSuffix(stderr, "; the key is order-1\n") {
		t.Errorf("exit %d, %s", code, stderr)
	}
}

func TestNothingIsSentUnderAKeyThatNobodyKnows(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	var requests atomic.Int32
	env := s.between(t, func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		requests.Add(1)
		service.ServeHTTP(w, r)
	})
	var stdout bytes.Buffer
	code := run(t.Context(), s.order("--amount", "2500"), func(name string) string { return env[name] }, &stdout, full{})
	if code != exitFailed || stdout.Len() > 0 || requests.Load() != 0 {
		t.Errorf("exit %d after %d requests, %s", code, requests.Load(), stdout.String())
	}
}
