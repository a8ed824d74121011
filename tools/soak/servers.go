package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/oncepay/oncepay/internal/embedded"
	"github.com/oncepay/oncepay/tools/rig"
)

const (
	database = "oncepay"
	standby  = "standby" // slot and application_name
)

// cluster is a primary and its synchronous standby: a promotion loses nothing that was
// acknowledged.
type cluster struct {
	primary, standby *embedded.Postgres
}

// startCluster makes a primary with roles and schema, and a standby from its files.
func startCluster(ctx context.Context, dir string) (c *cluster, err error) {
	c = &cluster{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.stop())
		}
	}()

	primary := embedded.PostgresOptions{
		Dir:      filepath.Join(dir, "primary"),
		Download: os.Getenv("EMBEDDED_POSTGRES") == "download",
	}
	if c.primary, err = rig.Postgres(ctx, primary, database); err != nil {
		return c, err
	}

	// The standby begins as a copy of a primary at rest. Unlike pg_basebackup, cp is there
	// wherever Postgres was downloaded.
	if err := c.primary.Stop(ctx); err != nil {
		return c, err
	}

	options := primary
	options.Dir = filepath.Join(dir, "standby")
	if err := os.Mkdir(options.Dir, 0o755); err != nil {
		return c, fmt.Errorf("make the standby's directory: %w", err)
	}

	data := filepath.Join(options.Dir, "data")
	copying := exec.CommandContext(ctx, "cp", "-a", filepath.Join(dir, "primary", "data"), data)
	if out, err := copying.CombinedOutput(); err != nil {
		return c, fmt.Errorf("copy the primary's files: %w\n%s", err, out)
	}

	if err := os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o644); err != nil {
		return c, fmt.Errorf("mark the standby: %w", err)
	}

	if c.primary, err = embedded.StartPostgres(ctx, primary); err != nil {
		return c, err
	}

	// The slot keeps the WAL that the standby has yet to read.
	slot := `SELECT pg_create_physical_replication_slot('` + standby + `', true)`
	if err := rig.Execute(ctx, c.maintenance(), slot); err != nil {
		return c, err
	}

	u, err := url.Parse(c.maintenance())
	if err != nil {
		return c, fmt.Errorf("find the primary's port: %w", err)
	}
	options.Settings = map[string]string{
		"primary_conninfo": fmt.Sprintf("host=%s port=%s user=postgres application_name=%s",
			u.Hostname(), u.Port(), standby),
		"primary_slot_name": standby,
	}

	if c.standby, err = embedded.StartPostgres(ctx, options); err != nil {
		return c, err
	}
	return c, c.awaitSync(ctx)
}

// awaitSync makes every COMMIT of the primary wait for the standby, and returns once they do.
func (c *cluster) awaitSync(ctx context.Context) error {
	for _, sql := range []string{
		`ALTER SYSTEM SET synchronous_standby_names = '` + standby + `'`, `SELECT pg_reload_conf()`,
	} {
		if err := rig.Execute(ctx, c.maintenance(), sql); err != nil {
			return err
		}
	}

	return rig.Until(ctx, time.Minute, "the standby is synchronous", func(ctx context.Context) bool {
		sync, err := rig.Query[bool](ctx, c.maintenance(),
			`SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')`)
		return err == nil && sync
	})
}

// failOver kills the primary and promotes the standby, as a cluster manager does.
func (c *cluster) failOver(ctx context.Context) error {
	if err := syscall.Kill(c.primary.Pid(), syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill the primary: %w", err)
	}

	// A primary that still answers would make two of them.
	err := rig.Until(ctx, 30*time.Second, "the primary is gone", func(ctx context.Context) bool {
		_, err := rig.Query[int](ctx, c.maintenance(), `SELECT 1`)
		return err != nil
	})
	if err != nil {
		return err
	}

	url := c.standby.URL("postgres", "postgres")
	promoted, err := rig.Query[bool](ctx, url, `SELECT pg_promote(true, 60)`)
	if err == nil && !promoted {
		err = errors.New("it did not become primary within a minute")
	}
	if err != nil {
		return fmt.Errorf("promote the standby: %w", err)
	}
	return nil
}

func (c *cluster) maintenance() string { return c.primary.URL("postgres", "postgres") }

// url names both servers, as an operator's configuration does. The programs find the one that
// takes writes.
func (c *cluster) url(role string) string {
	first, second := c.primary.URL(role, database), c.standby.URL(role, database)
	host := func(s string) string { return s[strings.Index(s, "@")+1 : strings.LastIndex(s, "/")] }
	return strings.Replace(first, host(first), host(first)+","+host(second), 1)
}

// owner is for connections that the programs' own rules do not open.
func (c *cluster) owner() string { return c.url("postgres") + "&target_session_attrs=read-write" }

func (c *cluster) stop() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()

	for _, p := range []*embedded.Postgres{c.primary, c.standby} {
		if p != nil {
			err = errors.Join(err, p.Stop(ctx))
		}
	}
	return err
}
