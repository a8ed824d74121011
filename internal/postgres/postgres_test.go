package postgres_test

import (
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/internal/testenv"
)

func TestSessionHasNameAndLimits(t *testing.T) {
	t.Parallel()
	pool, err := postgres.Open(t.Context(), testenv.Database(t).URL+"&lock_timeout=1s", "teller", 3, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	want := map[string]string{
		"application_name": "teller", "statement_timeout": "3s", "idle_in_transaction_session_timeout": "5s",
		"lock_timeout": "1s", // the URL's
	}
	var version int
	if err := pool.QueryRow(t.Context(), `SELECT current_setting('server_version_num')::int`).Scan(&version); err != nil {
		t.Fatal(err)
	}
	if version >= 170000 {
		want["transaction_timeout"] = "10s"
	}
	got := map[string]string{}
	for name := range want {
		var value string
		if err := pool.QueryRow(t.Context(), `SELECT current_setting($1)`, name).Scan(&value); err != nil {
			t.Fatal(err)
		}
		got[name] = value
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n := pool.Config().MaxConns; n != 3 {
		t.Errorf("at most %d connections, want 3", n)
	}
}

func TestSessionWithoutLimitsIsRefused(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	owner := db.Pool(t, "")
	behindPooler := func(c *pgx.ConnConfig) { clear(c.RuntimeParams) }
	pool, err := postgres.Open(t.Context(), db.URLAs("relay"), "x", 1, slog.New(slog.DiscardHandler), behindPooler)
	if err == nil {
		pool.Close()
		t.Fatal("it was taken")
	}
	for _, part := range []string{"enable_hashjoin, ", "statement_timeout", "role relay", "Behind a pooler"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	_, rest, _ := strings.Cut(err.Error(), "dropped ")
	names, _, _ := strings.Cut(rest, ":")
	for name := range strings.SplitSeq(names, ", ") {
		if _, err := owner.Exec(t.Context(), `ALTER ROLE relay IN DATABASE `+db.Name+` SET `+name+` FROM CURRENT`); err != nil {
			t.Fatal(err)
		}
	}
	if pool, err = postgres.Open(t.Context(), db.URLAs("relay"), "x", 1, slog.New(slog.DiscardHandler), behindPooler); err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var made int // by the session itself: the next client of the pooler would have it
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_settings WHERE source = 'session'`).Scan(&made); err != nil || made != 0 {
		t.Errorf("%d settings are the session's own, %v", made, err)
	}
}

func TestReadOnlyServerIsRefused(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	if _, err := db.Pool(t, "").Exec(t.Context(), `ALTER DATABASE `+db.Name+` SET default_transaction_read_only = on`); err != nil {
		t.Fatal(err)
	}
	if pool, err := postgres.Open(t.Context(), db.URLAs("relay"), "x", 1, slog.New(slog.DiscardHandler)); err == nil {
		pool.Close()
		t.Error("it was taken")
	} else if !strings.Contains(err.Error(), "read only connection") {
		t.Error(err)
	}
	pool, err := postgres.Open(t.Context(), db.URLAs("relay")+"&target_session_attrs=any", "x", 1, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	pool.Close()
}

func TestUnreachableServerIsOneLineWithoutPassword(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	for name, url := range map[string]string{
		"refused":       "postgres://u:hunter2@localhost:1/x",
		"several hosts": "postgres://u:hunter2@localhost:1,127.0.0.1:1/x",
		"silent":        "postgres://u:hunter2@" + silent.Addr().String() + "/x",
		"no such host":  "postgres://u:hunter2@nowhere.invalid/x",
		"malformed":     "postgres://u:hunter2@localhost:http/x",
		"no database":   strings.Replace(testenv.Database(t).URL, "/oncepay_", "/no_such_", 1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			pool, err := postgres.Open(t.Context(), url, "x", 1, slog.New(slog.DiscardHandler))
			if err == nil {
				pool.Close()
				t.Fatal("no error")
			}
			if took := time.Since(start); took > 15*time.Second {
				t.Errorf("took %s", took)
			}
			if text := err.Error(); strings.Contains(text, "hunter2") || strings.Contains(text, "\n") || !strings.HasPrefix(text, "open the database: ") {
				t.Errorf("error: %q", text)
			} else {
				t.Log(text)
			}
		})
	}
}
