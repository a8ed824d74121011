package idempotency_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/testenv"
)

// A counter that counts a request once, however often it is sent. Handler speaks the protocol, Do
// does the work.
func ExampleHandler() {
	db, done := testenv.Example(`CREATE TABLE visits (guest text)`)
	defer done()

	server := httptest.NewServer(&idempotency.Handler{
		DB: db,
		Scope: func(*http.Request) (tenant, client uuid.UUID, ok bool) {
			return uuid.Max, uuid.Max, true // a service with one client; else: from its credential
		},
		Validate: func(w http.ResponseWriter, r *http.Request) bool {
			if r.ContentLength == 0 { // not stored: the key stays free
				http.Error(w, "who are you?", http.StatusBadRequest)
			}
			return r.ContentLength > 0
		},
		Do: func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			guest, _ := io.ReadAll(r.Body) // from memory: Handler has read it
			_, err := tx.Exec(r.Context(), `INSERT INTO visits VALUES ($1)`, string(guest))
			if err != nil {
				return err // a lost race is tried again; otherwise rolled back, and the key stays free
			}

			var n int
			if err := tx.QueryRow(r.Context(), `SELECT count(*) FROM visits`).Scan(&n); err != nil {
				return err
			}
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, "%s is visitor %d", guest, n)
			return nil
		},
	})
	defer server.Close()

	send(server.URL, "key-1", "Ada")
	send(server.URL, "key-2", "Grace")
	send(server.URL, "key-1", "Ada")
	send(server.URL, "key-1", "Eve")
	send(server.URL, "key-3", "")
	// Output:
	// 201 replayed=false Ada is visitor 1
	// 201 replayed=false Grace is visitor 2
	// 201 replayed=true Ada is visitor 1
	// 422 replayed= this key was used for another request
	// 400 replayed= who are you?
}

// A handler of your own around Run, which decides what a request is and what each answer looks
// like.
func ExampleRun() {
	db, done := testenv.Example(`CREATE TABLE stock (item text PRIMARY KEY, pieces int NOT NULL); INSERT INTO stock VALUES ('lamp', 1)`)
	defer done()
	shop := uuid.New() // tenant and client; else: from the credential

	buy := func(w http.ResponseWriter, r *http.Request) {
		key, err := idempotency.ParseKey(r.Header)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		item, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 100)) // before the transaction: a slow client must not hold the key
		if err != nil {
			http.Error(w, "the body cannot be read or is too large", http.StatusBadRequest)
			return
		}
		answer, err := idempotency.Run(r.Context(), db, idempotency.Request{
			TenantID: shop, ClientID: shop, Key: key, RequestID: uuid.NewString(),
			Fingerprint: idempotency.NewFingerprint(shop, r.Method, "/purchases", nil, item),
		}, idempotency.DefaultRetention, func(ctx context.Context, tx pgx.Tx) (idempotency.Response, error) {
			taken, err := tx.Exec(ctx, `UPDATE stock SET pieces = pieces - 1 WHERE item = $1 AND pieces > 0`, string(item))
			if taken.RowsAffected() == 0 { // an answer like any other: stored, and replayed
				return idempotency.Response{Status: http.StatusConflict, ContentType: "text/plain", Body: []byte("sold out")}, err
			}
			return idempotency.Response{Status: http.StatusCreated, ContentType: "text/plain", Body: []byte("sold")}, err
		})
		if err != nil { // rolled back, or unknown: a repeat finds out
			w.Header().Set("Retry-After", "1")
			http.Error(w, "repeat with the same key", http.StatusServiceUnavailable)
			return
		}
		switch answer.State {
		case idempotency.New, idempotency.Replay: // committed: only now may anybody see it
			w.Header().Set("Content-Type", answer.Response.ContentType)
			w.Header().Set("Idempotent-Replayed", strconv.FormatBool(answer.State == idempotency.Replay))
			w.WriteHeader(answer.Response.Status)
			_, _ = w.Write(answer.Response.Body)
		case idempotency.InProgress:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "a request with this key is being worked on", http.StatusConflict)
		case idempotency.Mismatch:
			http.Error(w, "this key was used for another request", http.StatusUnprocessableEntity)
		case idempotency.UnknownFingerprintVersion:
			http.Error(w, "this key was stored by a newer version of this service", http.StatusServiceUnavailable)
		}
	}
	server := httptest.NewServer(http.HandlerFunc(buy))
	defer server.Close()

	send(server.URL, "key-1", "lamp")
	send(server.URL, "key-2", "lamp")
	send(server.URL, "key-1", "lamp")
	send(server.URL, "key-2", "lamp")
	// Output:
	// 201 replayed=false sold
	// 409 replayed=false sold out
	// 201 replayed=true sold
	// 409 replayed=true sold out
}

func send(url, key, body string) {
	request, _ := http.NewRequestWithContext(context.Background(), http.MethodPost, url, strings.NewReader(body))
	request.Header.Set("Idempotency-Key", key)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer response.Body.Close()
	answer, _ := io.ReadAll(response.Body)
	fmt.Printf("%d replayed=%s %s\n", response.StatusCode, response.Header.Get("Idempotent-Replayed"), strings.TrimSpace(string(answer)))
}
