package embedded

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// PostgresOptions are all optional.
type PostgresOptions struct {
	// Dir has data and log, kept for the next start; empty: temporary. If we are root, it is
	// given to the server's user.
	Dir string

	Settings map[string]string // server settings beyond the defaults; fsync is on unless set here
	Download bool              // do not look for binaries on this machine
}

// Postgres is a running server. Its superuser is postgres.
type Postgres struct {
	guard     *guard
	dir       string
	temporary bool
	port      int
	pid       int
	version   string
	origin    string
}

// startTimeout leaves room for a slow disk; a start takes a second or two.
const startTimeout = time.Minute

// StartPostgres returns when the server answers. The first start on a machine without Postgres
// downloads it, about 10 MB. The caller stops the server; ctx bounds the start only.
func StartPostgres(ctx context.Context, o PostgresOptions) (*Postgres, error) {
	for attempt := 1; ; attempt++ {
		p, err := startPostgres(ctx, o)
		switch {
		case err == nil:
			return p, nil
		case attempt < 3 && strings.Contains(err.Error(), "Address already in use"):
			// Another program took the free port before the server did. Three times in a row is
			// no accident.
		case attempt < 50 && strings.Contains(err.Error(), "pre-existing shared memory block"):
			// The server that used this directory was killed, and its children are still exiting.
			select {
			case <-ctx.Done():
				return nil, err
			case <-time.After(100 * time.Millisecond):
			}
		default:
			return nil, err
		}
	}
}

func startPostgres(ctx context.Context, o PostgresOptions) (_ *Postgres, err error) {
	owner, err := unprivileged()
	if err != nil {
		return nil, err
	}

	p := &Postgres{temporary: o.Dir == ""}
	if p.port, err = freePort(); err != nil {
		return nil, err
	}

	if p.dir, err = makeDir(o.Dir, owner); err != nil {
		return nil, err
	}

	// Leave neither server nor temporary directory behind after a failure.
	defer func() {
		if err == nil {
			return
		}

		if p.guard != nil {
			gone, cancel := context.WithCancel(context.Background())
			cancel()
			_ = p.guard.stop(gone) // killed: it holds nothing of value yet
		}
		if p.temporary {
			err = errors.Join(err, os.RemoveAll(p.dir))
		}
	}()

	binaries, err := p.findBinaries(ctx, o.Download, owner)
	if err != nil {
		return nil, err
	}

	// A download may take longer, so the limit begins after it.
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if p.guard, err = startGuard(binaries, p.dir, p.temporary, owner, p.flags(o.Settings)); err != nil {
		return nil, err
	}

	return p, p.awaitReady(ctx)
}

// makeDir returns an absolute path without symbolic links: the form in which the server reports
// its data directory.
func makeDir(dir string, owner *syscall.Credential) (string, error) {
	var err error
	if dir == "" {
		dir, err = os.MkdirTemp("", "oncepay-postgres-")
	} else {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return "", fmt.Errorf("make directory of postgres: %w", err)
	}

	if owner != nil {
		if err := os.Chown(dir, int(owner.Uid), int(owner.Gid)); err != nil {
			return "", fmt.Errorf("give directory of postgres to nobody: %w", err)
		}
	}

	if dir, err = filepath.EvalSymlinks(dir); err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return "", fmt.Errorf("resolve directory of postgres: %w", err)
	}
	return dir, nil
}

func (p *Postgres) findBinaries(
	ctx context.Context, fetch bool, owner *syscall.Credential,
) (string, error) {
	if !fetch {
		if dir, ok := installed(ctx); ok {
			p.origin = "installed at " + dir
			return dir, nil
		}
	}

	p.origin = "embedded-postgres " + downloadVersion + " from Maven Central"
	return download(ctx, p.dir, owner)
}

func (p *Postgres) flags(settings map[string]string) []string {
	all := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(p.port),
		"unix_socket_directories": "", // a temporary path may exceed a socket's 107 bytes
		"max_connections":         "200",
	}

	maps.Copy(all, settings)

	var flags []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		flags = append(flags, "-c", name+"="+all[name])
	}

	return flags
}

// awaitReady polls until this very server answers: another one may answer on the port.
func (p *Postgres) awaitReady(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !p.ready(ctx) {
		select {
		case <-tick.C:
		case <-p.guard.ended:
			return fmt.Errorf("start postgres: it ended:\n%s", p.guard.tail())
		case <-ctx.Done():
			return fmt.Errorf("start postgres: %w:\n%s", context.Cause(ctx), p.guard.tail())
		}
	}
	return nil
}

const describe = `
SELECT current_setting('data_directory'), split_part(current_setting('server_version'), ' ', 1),
  split_part(pg_read_file('postmaster.pid'), E'\n', 1)::int`

// ready reports whether the server answers. If it never does, its log says why.
func (p *Postgres) ready(ctx context.Context) bool {
	// Another program on the port may accept and stay silent.
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()

	conn, err := pgx.Connect(ctx, p.URL("postgres", "postgres"))
	if err != nil {
		return false
	}
	defer conn.Close(context.WithoutCancel(ctx))

	// The data directory tells our server from any other.
	var data string
	err = conn.QueryRow(ctx, describe).Scan(&data, &p.version, &p.pid)
	return err == nil && data == filepath.Join(p.dir, "data")
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// URL returns the URL of a database for a user. The password is the user's name; the server
// ignores it.
func (p *Postgres) URL(user, database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(user, user),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Version returns the server's version, such as 17.5.
func (p *Postgres) Version() string { return p.version }

// Origin describes where the server's binaries came from.
func (p *Postgres) Origin() string { return p.origin }

// Pid returns the process that a test kills to make the whole server crash.
func (p *Postgres) Pid() int { return p.pid }

// Stop shuts the server down, ending all sessions, and returns once it has ended and a temporary
// directory is gone. If ctx ends first, the server is killed. A second call does nothing.
func (p *Postgres) Stop(ctx context.Context) error {
	err := p.guard.stop(ctx)
	if p.temporary {
		// The guard has done this unless it was killed or may not write to the parent directory.
		err = errors.Join(err, os.RemoveAll(p.dir))
	}
	return err
}
