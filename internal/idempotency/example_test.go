package idempotency_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
)

// A counter that counts a request once, however often it is sent.
func ExampleHandler() {
	pool, done := exampleDatabase(`CREATE TABLE visits (guest text); GRANT SELECT, INSERT ON visits TO api_write`)
	defer done()

	server := httptest.NewServer(&idempotency.Handler{
		DB: pool,
		Scope: func(*http.Request) (tenant, client uuid.UUID, ok bool) {
			return uuid.Max, uuid.Max, true // a service with one client; else: from its credential
		},
		Do: func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) {
			guest, _ := io.ReadAll(r.Body)
			if _, err := tx.Exec(r.Context(), `INSERT INTO visits VALUES ($1)`, string(guest)); err != nil {
				http.Error(w, "database", http.StatusInternalServerError) // rolled back, the key stays free
				return
			}
			var n int
			if err := tx.QueryRow(r.Context(), `SELECT count(*) FROM visits`).Scan(&n); err != nil {
				http.Error(w, "database", http.StatusInternalServerError)
				return
			}
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, "%s is visitor %d", guest, n)
		},
	})
	defer server.Close()

	send := func(key, guest string) {
		request, _ := http.NewRequestWithContext(context.Background(), http.MethodPost, server.URL, strings.NewReader(guest))
		request.Header.Set("Idempotency-Key", key)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		fmt.Printf("%d replayed=%s %s\n", response.StatusCode, response.Header.Get("Idempotent-Replayed"), strings.TrimSpace(string(body)))
	}
	send("key-1", "Ada")
	send("key-2", "Grace")
	send("key-1", "Ada")
	send("key-1", "Eve")
	// Output:
	// 201 replayed=false Ada is visitor 1
	// 201 replayed=false Grace is visitor 2
	// 201 replayed=true Ada is visitor 1
	// 422 replayed= this key was used for another request
}

// exampleDatabase is a migrated database with some tables more; done drops it.
func exampleDatabase(tables string) (_ idempotency.Beginner, done func()) {
	tb := &exampleTB{}
	d := newDatabase(tb)
	if _, err := d.owner.Exec(context.Background(), tables); err != nil {
		panic(err)
	}
	return d.write, tb.cleanUp
}

// exampleTB lets an example, which has no testing.TB, use what tests use.
type exampleTB struct {
	testing.TB
	cleanups []func()
}

func (*exampleTB) Helper()                    {}
func (*exampleTB) Log(...any)                 {}
func (*exampleTB) Context() context.Context   { return context.Background() }
func (*exampleTB) Fatal(args ...any)          { panic(fmt.Sprint(args...)) }
func (*exampleTB) Fatalf(f string, as ...any) { panic(fmt.Sprintf(f, as...)) }
func (*exampleTB) Errorf(f string, as ...any) { panic(fmt.Sprintf(f, as...)) }
func (e *exampleTB) Cleanup(f func())         { e.cleanups = append(e.cleanups, f) }

func (e *exampleTB) cleanUp() {
	for len(e.cleanups) > 0 {
		last := len(e.cleanups) - 1
		e.cleanups[last]()
		e.cleanups = e.cleanups[:last]
	}
}
