package ops

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/embedded"
	"github.com/oncepay/oncepay/internal/testenv"
)

// cluster is a Postgres server of its own, which is stopped and started again.
type cluster struct {
	t        *testing.T
	dir      string
	settings map[string]string
	server   *embedded.Postgres
}

// place is where a test's clusters are. The server's user may not enter what t.TempDir makes.
func place(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "oncepay-upgrade-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // temporary
	return dir
}

func startCluster(t *testing.T, dir string, settings map[string]string) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: dir, settings: settings}
	t.Cleanup(c.stop)
	c.start()
	return c
}

func (c *cluster) start() {
	c.t.Helper()
	var err error
	c.server, err = embedded.StartPostgres(c.t.Context(), embedded.PostgresOptions{Dir: c.dir, Settings: c.settings})
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) stop() {
	if c.server == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	if err := c.server.Stop(ctx); err != nil {
		c.t.Error(err)
	}
	c.server = nil
}

func (c *cluster) url(user string) string { return c.server.URL(user, "oncepay") }

// create makes roles and the database.
func (c *cluster) create() {
	c.t.Helper()
	if err := embedded.CreateRoles(c.t.Context(), c.server.URL("postgres", "postgres")); err != nil {
		c.t.Fatal(err)
	}
	c.database()
}

func (c *cluster) database() {
	c.t.Helper()
	conn, err := pgx.Connect(c.t.Context(), c.server.URL("postgres", "postgres"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(c.t.Context(), `CREATE DATABASE oncepay`); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) migrate() {
	c.t.Helper()
	got := current.run(c.t, "migrate", []string{"DATABASE_URL=" + c.url("postgres")}, []string{"up"}, nil)
	if got.code != 0 {
		c.t.Fatalf("migrate: %+v", got)
	}
}

// sell makes accounts and payments, each with its event.
func (c *cluster) sell(tenant string) {
	c.t.Helper()
	args := append(slices.Clone(seed), "--tenant", tenant)
	got := current.run(c.t, "oncepay", []string{"DATABASE_URL=" + c.url("postgres")}, args, nil)
	if got.code != 0 {
		c.t.Fatalf("seed: %+v", got)
	}
}

// query asks for one value, as the owner.
func query[T any](c *cluster, sql string, args ...any) (answer T) {
	c.t.Helper()
	pool, err := pgxpool.New(c.t.Context(), c.url("postgres"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer pool.Close()
	if err := pool.QueryRow(c.t.Context(), sql, args...).Scan(&answer); err != nil {
		c.t.Fatalf("%s: %v", sql, err)
	}
	return answer
}

// statement runs a statement as the owner.
func (c *cluster) statement(sql string) {
	c.t.Helper()
	conn, err := pgx.Connect(c.t.Context(), c.url("postgres"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(c.t.Context(), sql); err != nil {
		c.t.Fatalf("%s: %v", sql, err)
	}
}

// tool returns a program that came with the server.
func (c *cluster) tool(name string) string {
	c.t.Helper()
	dir, installed := strings.CutPrefix(c.server.Origin(), "installed at ")
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); !installed || err != nil {
		testenv.Missing(c.t, "NO "+strings.ToUpper(name)+": no upgrade or backup of Postgres is tested (install postgresql)")
	}
	return path
}

// asOwnerOf runs a command as the user whom a directory belongs to, and in it.
func asOwnerOf(t *testing.T, dir, program string, args ...string) {
	t.Helper()
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir, cmd.Env = dir, []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	if owner, is := info.Sys().(*syscall.Stat_t); is && os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", filepath.Base(program), err, out)
	}
}
