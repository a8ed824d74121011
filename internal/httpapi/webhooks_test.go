package httpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/internal/webhooks"
	"github.com/oncepay/oncepay/test/pgproxy"
)

// A deletion has no key, and a client is told that nothing was done only if that is so.
func TestLostCommitOfADeletionIsFoundOut(t *testing.T) {
	t.Parallel()
	for fate, deleted := range map[pgproxy.Fate]bool{pgproxy.LoseReply: true, pgproxy.LoseRequest: false} {
		t.Run(fate.String(), func(t *testing.T) {
			t.Parallel()
			var lose atomic.Int64 // so many COMMITs
			a := start(t, func(o *httpapi.Options) {
				config := o.Write.(*pgxpool.Pool).Config()
				proxy := pgproxy.Start(t, config.ConnString(), func(int, int) pgproxy.Fate {
					if lose.Add(-1) >= 0 {
						return fate
					}
					return pgproxy.Pass
				})
				proxy.Through(&config.ConnConfig.Config)
				pool, err := pgxpool.NewWithConfig(context.Background(), config)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(pool.Close)
				o.Write = pool
			})
			create := func() string {
				e := read[webhooks.Endpoint](t, a.caller.post(t, "/api/v1/webhook-endpoints", `{"url":"https://example.com/hooks"}`), http.StatusCreated)
				return "/api/v1/webhook-endpoints/" + e.ID.String()
			}
			remove := func(path string) answer { return a.caller.do(t, http.MethodDelete, path, "") }

			// On a machine that pauses, the time to find out may be over.
			testenv.Eventually(t, 30*time.Second, func() error {
				once := create()
				lose.Store(1)
				if got := remove(once); got.status != http.StatusOK {
					return fmt.Errorf("%+v", got)
				}
				a.caller.get(t, once).wantStatus(t, http.StatusNotFound)
				return nil
			})

			away := create()
			lose.Store(1_000_000)
			unknown := remove(away)
			if p := unknown.is(t, http.StatusServiceUnavailable, "outcome-unknown"); p.Retry != "same-key" || unknown.header.Get("Retry-After") == "" {
				t.Errorf("%+v", unknown)
			}
			lose.Store(0)
			if gone := a.caller.get(t, away).status == http.StatusNotFound; gone != deleted {
				t.Errorf("it is deleted: %t", gone)
			}
			remove(away).wantStatus(t, http.StatusOK)
			a.caller.get(t, away).wantStatus(t, http.StatusNotFound)
		})
	}
}
