package idempotency_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
)

// handler counts the work in its database and answers as do says, after the effect.
func handler(d database, do func(http.ResponseWriter, *http.Request)) *idempotency.Handler {
	tenant, client := uuid.New(), uuid.New()
	return &idempotency.Handler{
		DB: d.write,
		Scope: func(r *http.Request) (uuid.UUID, uuid.UUID, bool) {
			return tenant, client, r.Header.Get("Authorization") != ""
		},
		Do: func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			key := r.Header.Get(idempotency.Header)
			if _, err := tx.Exec(r.Context(), `INSERT INTO effects VALUES ($1)`, key); err != nil {
				return err
			}
			do(w, r)
			return nil
		},
		Log: slog.New(slog.DiscardHandler),
	}
}

func post(h http.Handler, key, target, body string) *http.Response {
	r := httptest.NewRequest(http.MethodPost, target, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer x")
	r.Header.Set(idempotency.Header, key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func text(t testing.TB, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestHandlerReplaysFirstAnswer(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	h := handler(d, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/x")
		w.Header().Set("Location", "/x/1")
		w.WriteHeader(http.StatusPaymentRequired)
		_, _ = w.Write(append(body, uuid.NewString()+"\xff\x00\n"...))
	})
	first := post(h, "k1", "/x", "body ")
	again := post(h, `"k1"`, "/x", "body ")
	want := text(t, first)
	if got := text(t, again); got != want || first.StatusCode != 402 || again.StatusCode != 402 {
		t.Errorf("%d %q, then %d %q", first.StatusCode, want, again.StatusCode, got)
	}
	for _, name := range []string{"Content-Type", "Location", "Content-Length", "Idempotency-Key", "Idempotency-Key-Expires"} {
		if a, b := first.Header.Get(name), again.Header.Get(name); a != b || a == "" {
			t.Errorf("%s: %q, then %q", name, a, b)
		}
	}
	got := []string{
		first.Header.Get("Idempotent-Replayed"), first.Header.Get("Original-Date"),
		again.Header.Get("Idempotent-Replayed"), again.Header.Get(idempotency.Header),
	}
	if diff := cmp.Diff([]string{"false", "", "true", "k1"}, got); diff != "" {
		t.Error(diff)
	}
	if again.Header.Get("Original-Date") == "" || again.Header.Get("Original-Request-Id") == "" {
		t.Errorf("the replay does not name its original: %v", again.Header)
	}
	if n := d.count(t, "effects"); n != 1 {
		t.Errorf("worked %d times", n)
	}
	for name, other := range map[string]*http.Response{
		"body": post(h, "k1", "/x", "other"), "white space": post(h, "k1", "/x", "body"),
		"path": post(h, "k1", "/y", "body "), "query": post(h, "k1", "/x?a=1", "body "),
	} {
		if other.StatusCode != http.StatusUnprocessableEntity {
			t.Errorf("another %s under the key: %d", name, other.StatusCode)
		}
	}
}

func TestHandlerRollsBackServerError(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	status := http.StatusInternalServerError
	h := handler(d, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	h.Log = nil
	if r := post(h, "k", "/", ""); r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" {
		t.Errorf("%d %v", r.StatusCode, r.Header)
	}
	if n := d.count(t, "effects") + d.count(t, "idempotency_keys"); n != 0 {
		t.Errorf("%d rows were left", n)
	}
	status = http.StatusCreated
	if r := post(h, "k", "/", ""); r.StatusCode != status || r.Header.Get("Idempotent-Replayed") != "false" {
		t.Errorf("%d %v", r.StatusCode, r.Header)
	}
}

func TestHandlerRollsBackPanic(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	broken := true
	h := handler(d, func(http.ResponseWriter, *http.Request) {
		if broken {
			panic(http.ErrAbortHandler)
		}
	})
	func() {
		defer func() {
			if recover() != http.ErrAbortHandler { //nolint:errorlint // the very value that net/http looks for
				t.Error("the panic did not reach the server")
			}
		}()
		post(h, "k", "/", "")
	}()
	broken = false
	if r := post(h, "k", "/", ""); r.StatusCode != http.StatusOK || d.count(t, "effects") != 1 {
		t.Errorf("%d, %d effects", r.StatusCode, d.count(t, "effects"))
	}
}

func TestHandlerRefusesBeforeClaim(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	h := handler(d, func(http.ResponseWriter, *http.Request) {})
	unknown := httptest.NewRecorder()
	h.ServeHTTP(unknown, httptest.NewRequest(http.MethodPost, "/", nil))
	for name, c := range map[string]struct{ got, want int }{
		"no credential":    {unknown.Code, http.StatusUnauthorized},
		"malformed key":    {post(h, "a,b", "/", "").StatusCode, http.StatusBadRequest},
		"too large a body": {post(h, "k", "/", strings.Repeat("x", 64<<10+1)).StatusCode, http.StatusRequestEntityTooLarge},
		"the largest body": {post(h, "k", "/", strings.Repeat("x", 64<<10)).StatusCode, http.StatusOK},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", name, c.got, c.want)
		}
	}
	if n := d.count(t, "effects"); n != 1 {
		t.Errorf("worked %d times", n)
	}
}

func TestHandlerValidatesBeforeClaim(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	h := handler(d, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	h.Validate = func(w http.ResponseWriter, r *http.Request) bool {
		body, _ := io.ReadAll(r.Body)
		if string(body) != "good" {
			http.Error(w, "malformed", http.StatusBadRequest)
		}
		return string(body) == "good"
	}

	if r := post(h, "k", "/", "bad"); r.StatusCode != 400 || r.Header.Get("Idempotent-Replayed") != "" {
		t.Errorf("malformed: %d %v", r.StatusCode, r.Header)
	}
	if n := d.count(t, "effects") + d.count(t, "idempotency_keys"); n != 0 {
		t.Errorf("a malformed request left %d rows", n)
	}
	if r := post(h, "k", "/", "good"); r.StatusCode != 200 || text(t, r) != "good" {
		t.Errorf("corrected, under the same key: %d", r.StatusCode)
	}
}

func TestHandlerRetriesLostRace(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	h := handler(d, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
	do, runs := h.Do, 0
	h.Do = func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		if err := do(w, r, tx); err != nil {
			return err
		}
		if runs++; runs > 1 {
			return nil
		}
		_, err := tx.Exec(r.Context(), `DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '40P01'; END $$`)
		return err
	}

	if r := post(h, "k", "/", ""); r.StatusCode != http.StatusCreated {
		t.Errorf("answered %d", r.StatusCode)
	}
	if n := d.count(t, "effects"); n != 1 || runs != 2 {
		t.Errorf("%d effects of %d runs", n, runs)
	}
}

func TestHandlerAnswersDuplicateAtOnce(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	working, finish, done := make(chan struct{}), make(chan struct{}), make(chan int)
	h := handler(d, func(http.ResponseWriter, *http.Request) {
		close(working)
		<-finish
	})
	go func() { done <- post(h, "k", "/", "").StatusCode }()
	<-working
	if r := post(h, "k", "/", ""); r.StatusCode != http.StatusConflict || r.Header.Get("Retry-After") == "" {
		t.Errorf("%d %v", r.StatusCode, r.Header)
	}
	close(finish)
	if status := <-done; status != http.StatusOK {
		t.Errorf("the first attempt: %d", status)
	}
}
