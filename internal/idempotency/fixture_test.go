package idempotency_test

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/testenv"
)

const retention = idempotency.DefaultRetention

// database is a database with a table for the effects of the work, one row for each time it was
// done.
type database struct {
	owner *pgxpool.Pool
	write *pgxpool.Pool // as api_write
	url   string
}

func newDatabase(t testing.TB) database {
	t.Helper()
	db := testenv.Database(t)
	d := database{owner: openPool(t, db.URL, nil), write: openPool(t, db.URLAs("api_write"), nil), url: db.URLAs("api_write")}
	mustExec(t, d.owner, `CREATE TABLE effects (key text NOT NULL); GRANT SELECT, INSERT ON effects TO api_write`)
	return d
}

func openPool(t testing.TB, url string, tracer pgx.QueryTracer) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns, config.ConnConfig.Tracer = 12, tracer
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // waits for connections that are out
		closed := make(chan struct{})
		go func() { pool.Close(); close(closed) }()
		select {
		case <-closed:
		case <-time.After(10 * time.Second):
			t.Errorf("%d connections were not given back", pool.Stat().AcquiredConns())
		}
	})
	return pool
}

// effects counts how often the work of r was done and committed.
func (d database) effects(t testing.TB, r idempotency.Request) (n int) {
	t.Helper()
	if err := d.owner.QueryRow(t.Context(), `SELECT count(*) FROM effects WHERE key = $1`, r.Key).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// attempt is Claim, the work, Store for rs, as CommitOnce takes it.
func attempt(rs ...idempotency.Request) func(context.Context, pgx.Tx) ([]idempotency.Answer, error) {
	return func(ctx context.Context, tx pgx.Tx) ([]idempotency.Answer, error) {
		as, err := idempotency.Claim(ctx, tx, rs, retention)
		if err != nil {
			return nil, err
		}
		for i := range as {
			if as[i].State == idempotency.New {
				if as[i].Response, err = work(rs[i])(ctx, tx); err != nil {
					return nil, err
				}
			}
		}
		return as, idempotency.Store(ctx, tx, rs, as)
	}
}

// work leaves an effect and answers with bytes that are neither JSON nor UTF-8, other ones each
// time it is done.
func work(r idempotency.Request) func(context.Context, pgx.Tx) (idempotency.Response, error) {
	return func(ctx context.Context, tx pgx.Tx) (idempotency.Response, error) {
		_, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1)`, r.Key)
		body := make([]byte, 64)
		_, _ = rand.Read(body)
		return idempotency.Response{Status: 201, ContentType: "a/b; c=d", Location: "/effects/" + r.Key, Body: append(body, 0, 0xff, '\n')}, err
	}
}

func (d database) run(t testing.TB, r idempotency.Request) idempotency.Answer {
	t.Helper()
	a, err := idempotency.Run(t.Context(), d.write, r, retention, work(r))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (d database) peek(t testing.TB, r idempotency.Request) idempotency.Answer {
	t.Helper()
	tx := begin(t, d.write)
	defer tx.Rollback(t.Context())
	a, err := idempotency.Peek(t.Context(), tx, r, retention)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// newRequest makes a request under a key of its own, in a scope of its own.
func newRequest() idempotency.Request {
	tenant := uuid.New()
	return idempotency.Request{
		TenantID: tenant, ClientID: uuid.New(), Key: "k-" + uuid.NewString(), RequestID: uuid.NewString(),
		Fingerprint: idempotency.NewFingerprint(tenant, "POST", "/effects", nil, []byte("work")),
	}
}

// again is another attempt of the same request.
func again(r idempotency.Request) idempotency.Request {
	r.RequestID = uuid.NewString()
	return r
}

// changed is another request under the same key.
func changed(r idempotency.Request) idempotency.Request {
	r = again(r)
	r.Fingerprint = idempotency.NewFingerprint(r.TenantID, "POST", "/effects", nil, []byte("other work"))
	return r
}

func begin(t testing.TB, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func claim(t testing.TB, tx pgx.Tx, rs ...idempotency.Request) []idempotency.Answer {
	t.Helper()
	as, err := idempotency.Claim(t.Context(), tx, rs, retention)
	if err != nil {
		t.Fatal(err)
	}
	return as
}

func states(as []idempotency.Answer) (out []string) {
	for _, a := range as {
		out = append(out, a.State.String())
	}
	return out
}

func wantState(t testing.TB, got idempotency.Answer, want idempotency.State) {
	t.Helper()
	if got.State != want {
		t.Errorf("the answer is %s, want %s", got.State, want)
	}
}

type executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

func mustExec(t testing.TB, db executor, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// insert writes a finished key as it would have been written at another time.
func insert(t testing.TB, db executor, r idempotency.Request, age time.Duration) {
	t.Helper()
	mustExec(t, db, `INSERT INTO idempotency_keys (tenant_id, client_id, key, key_hash, day, created_at, fingerprint, fingerprint_version,
			request_id, status, content_type, location, body)
		SELECT $1, $2, $3, substr(sha256(uuid_send($1) || uuid_send($2) || convert_to($3, 'UTF8')), 1, 16), (at AT TIME ZONE 'utc')::date, at, $5, $6, 'before', 201, 'text/plain', '', 'before'
		FROM (SELECT now() - $4::interval) t(at)`,
		r.TenantID, r.ClientID, r.Key, age, r.Fingerprint.Sum[:], r.Fingerprint.Version)
}
