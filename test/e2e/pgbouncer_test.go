package e2e

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/testenv"
)

// pgBouncer is one in front of a test's own database, in transaction mode and configured as docs/operating.md says.
type pgBouncer struct {
	t     *testing.T
	db    *testenv.DB
	dir   string
	port  int
	query string // of the documented URL
}

// newPgBouncer starts one until the test ends. It finds db at the URL server. Without PgBouncer the test is skipped, in CI it fails.
func newPgBouncer(t *testing.T, db *testenv.DB, server string) *pgBouncer {
	t.Helper()
	binary := findPgBouncer(t)
	ini, roles, env := documentedPooler(t)
	to, err := pgconn.ParseConfig(server)
	if err != nil {
		t.Fatal(err)
	}
	_, query, _ := strings.Cut(env, "?")
	b := &pgBouncer{t: t, db: db, dir: readableDir(t), query: query}
	if _, err := db.Pool(t, "").Exec(t.Context(), roles); err != nil {
		t.Fatalf("give the roles their settings: %v", err)
	}
	// Of two lines for one thing the later counts.
	ini = strings.Replace(ini, "[databases]\n", fmt.Sprintf("[databases]\n%s = host=%s port=%d\n", db.Name, to.Host, to.Port), 1)
	var users strings.Builder
	for _, role := range []string{"api_write", "api_read", "relay", "consumer"} {
		fmt.Fprintf(&users, "%q %q\n", role, role)
	}
	b.write("userlist.txt", users.String())
	for attempt := 1; ; attempt++ {
		free, err := process.FreeAddress()
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := strings.Cut(free, ":")
		if b.port, err = strconv.Atoi(port); err != nil {
			t.Fatal(err)
		}
		b.write("pgbouncer.ini", ini+fmt.Sprintf(testsOwn, b.port, b.dir))
		if b.start(binary) {
			return b
		}
		log, _ := os.ReadFile(filepath.Join(b.dir, "log"))
		// Another program took the free port before PgBouncer had it. Three times in a row is no accident.
		if attempt == 3 || !strings.Contains(string(log), "Address already in use") {
			t.Fatalf("PgBouncer ended:\n%s", log)
		}
	}
}

// No client gets the same session twice running: who leaves something in a session misses it.
const testsOwn = `
listen_addr = 127.0.0.1
listen_port = %d
auth_file = %s/userlist.txt
unix_socket_dir =
server_round_robin = 1
`

func findPgBouncer(t *testing.T) string {
	t.Helper()
	path := testenv.Tool(t, "NO PGBOUNCER: nothing is tested through a pooler (apt-get install pgbouncer)",
		"pgbouncer", "/usr/sbin/pgbouncer") // Debian puts it where only root looks
	version, err := exec.Command(path, "--version").Output()
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	first, _, _ := strings.Cut(string(version), "\n")
	t.Logf("%s at %s", first, path)
	return path
}

// documentedPooler returns what docs/operating.md shows: PgBouncer's configuration, the settings of the roles, a program's URL.
func documentedPooler(t *testing.T) (ini, roles, env string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Behind a pooler\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var blocks []string
	inside := false
	for line := range strings.Lines(section) {
		code, indented := strings.CutPrefix(line, "    ")
		switch {
		case indented && inside:
			blocks[len(blocks)-1] += code
		case indented:
			blocks = append(blocks, code)
		case inside && line == "\n":
			blocks[len(blocks)-1] += line
			continue
		}
		inside = indented
	}
	if len(blocks) != 3 {
		t.Fatalf("docs/operating.md has %d blocks under \"Behind a pooler\", want 3", len(blocks))
	}
	return blocks[0], blocks[1], strings.TrimSpace(blocks[2])
}

// readableDir is a directory that PgBouncer can read when it is not root any more. t.TempDir is not.
func readableDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "oncepay-pgbouncer-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // temporary
	return dir
}

func (b *pgBouncer) write(name, text string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// start returns when PgBouncer answers, or false when it has ended.
func (b *pgBouncer) start(binary string) bool {
	b.t.Helper()
	args := []string{filepath.Join(b.dir, "pgbouncer.ini")}
	if os.Geteuid() == 0 {
		args = append(args, "-u", "nobody") // it refuses to be root
	}

	// The database is this test's own, so what answers is its PgBouncer.
	ready := func() error {
		conn, err := pgx.Connect(b.t.Context(), b.URL("relay"))
		if err != nil {
			return err
		}
		return conn.Close(b.t.Context())
	}
	return testenv.Serve(b.t, filepath.Join(b.dir, "log"), ready, binary, args...)
}

// URL is where a role finds the database.
func (b *pgBouncer) URL(role string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(role, role), Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port)),
		Path: "/" + b.db.Name, RawQuery: b.query,
	}
	return u.String()
}

// Pool opens a pool for a role.
func (b *pgBouncer) Pool(role string, most int32) *pgxpool.Pool {
	b.t.Helper()
	cfg, err := pgxpool.ParseConfig(b.URL(role))
	if err != nil {
		b.t.Fatal(err)
	}
	cfg.MaxConns = most
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(pool.Close)
	return pool
}

// What a session has that is not for the next client. PgBouncer itself sets what it keeps for each client, and from 1.21 on it prepares
// statements under names of its own.
const leftInSession = `
SELECT pg_backend_pid(), (
    SELECT coalesce(string_agg(what, ', '), '') FROM (
        SELECT 'setting ' || name AS what FROM pg_settings
        WHERE source = 'session' AND lower(name) NOT IN
            ('application_name', 'client_encoding', 'datestyle', 'intervalstyle', 'search_path', 'standard_conforming_strings', 'timezone')
        UNION ALL SELECT 'a tenant' WHERE current_setting('oncepay.tenant', true) <> ''
        UNION ALL SELECT 'statement ' || name FROM pg_prepared_statements WHERE name NOT LIKE 'PGBOUNCER%'
        UNION ALL SELECT 'listening to ' || c FROM pg_listening_channels() c
        UNION ALL SELECT 'cursor ' || name FROM pg_cursors WHERE name <> '' AND is_holdable
        UNION ALL SELECT 'a lock' FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) l)`

// sessionsAreClean looks into every session of a role's that PgBouncer has, all at once so that each is a different one.
func (b *pgBouncer) sessionsAreClean(role string) {
	b.t.Helper()
	ctx := b.t.Context()
	var sessions int
	err := b.db.Pool(b.t, "").QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND usename = $2`, b.db.Name, role).Scan(&sessions)
	if err != nil || sessions == 0 {
		b.t.Fatalf("%s has %d sessions: %v", role, sessions, err)
	}
	pool, seen := b.Pool(role, int32(sessions)), map[uint32]bool{}
	for range sessions {
		tx, err := pool.Begin(ctx)
		if err != nil {
			b.t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(ctx) }() // nothing was written
		var pid uint32
		var what string
		if err := tx.QueryRow(ctx, leftInSession, pgx.QueryExecModeSimpleProtocol).Scan(&pid, &what); err != nil {
			b.t.Fatal(err)
		}
		if seen[pid] = true; what != "" {
			b.t.Errorf("a session of %s has %s", role, what)
		}
	}
	b.t.Logf("%d sessions of %s", len(seen), role)
}
