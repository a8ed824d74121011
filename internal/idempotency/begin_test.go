package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/testenv"
)

const (
	killBackends  = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'api_write'`
	countBackends = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'api_write'`
)

func TestBeginSkipsDeadConnections(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	const connections = 5
	var gathered, all sync.WaitGroup // so that each attempt has a connection of its own
	gathered.Add(connections)
	for range connections {
		r := newRequest()
		all.Go(func() {
			_, err := idempotency.Run(t.Context(), d.write, r, retention, func(ctx context.Context, tx pgx.Tx) (idempotency.Response, error) {
				gathered.Done()
				gathered.Wait()
				return work(r)(ctx, tx)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	mustExec(t, d.owner, killBackends)
	testenv.Eventually(t, 10*time.Second, func() error {
		var left int
		if err := d.owner.QueryRow(t.Context(), countBackends).Scan(&left); err != nil || left > 0 {
			return fmt.Errorf("%d backends are left: %w", left, err)
		}
		return nil
	})
	if n := d.write.Stat().IdleConns(); n != connections {
		t.Fatalf("the pool has %d connections, want %d that are dead", n, connections)
	}
	r := newRequest()
	a := d.run(t, r)
	wantState(t, a, idempotency.New)
	if n := d.effects(t, r); n != 1 || a.Response.Status != 201 {
		t.Errorf("worked %d times, answered %d", n, a.Response.Status)
	}
}

// refuses is a database that begins nothing.
type refuses struct {
	with  error
	begun int
}

func (r *refuses) BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error) {
	r.begun++
	return nil, r.with
}

func TestBeginIsNotRetriedWhenRefused(t *testing.T) {
	t.Parallel()
	ended, end := context.WithCancel(t.Context())
	end()
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		most int
	}{
		"no server listens":                    {t.Context(), &pgconn.ConnectError{}, 1},
		"the server refuses but keeps running": {t.Context(), &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "25006"}, 1},
		"the caller is gone":                   {ended, context.Canceled, 1},
		"every connection breaks":              {t.Context(), io.ErrUnexpectedEOF, 20},
		"unknown cause":                        {t.Context(), errors.New("closed pool"), 1},
	} {
		db := &refuses{with: c.err}
		r := newRequest()
		_, err := idempotency.Run(c.ctx, db, r, retention, work(r))
		if !errors.Is(err, c.err) || db.begun != c.most {
			t.Errorf("%s: asked %d times, want %d: %v", name, db.begun, c.most, err)
		}
	}
}
