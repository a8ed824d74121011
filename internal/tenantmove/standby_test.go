package tenantmove_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/embedded"
	"github.com/oncepay/oncepay/internal/tenantmove"
	"github.com/oncepay/oncepay/migrations"
)

// A standby of the target has the primary's identity, old data, and locks of its own.
func TestStandbyCannotSayWhoMayStay(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "oncepay-standby-") // t.TempDir's parent is closed to the server's user
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "server")
	run := func() (server *embedded.Postgres, target cluster) {
		server, err := embedded.StartPostgres(t.Context(), embedded.PostgresOptions{
			Dir: dir, Settings: map[string]string{"fsync": "off", "autovacuum": "off"},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = server.Stop(context.Background()) })
		pool, err := pgxpool.New(t.Context(), server.URL("postgres", "postgres"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return server, cluster{pool, t}
	}

	primary, target := run()
	if err := embedded.CreateRoles(t.Context(), primary.URL("postgres", "postgres")); err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Up(t.Context(), primary.URL("postgres", "postgres")); err != nil {
		t.Fatal(err)
	}
	identity := target.lines(`SELECT system_identifier || '/' || current_database() FROM pg_control_system()`)
	target.Close()
	if err := primary.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "data", "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	_, target = run()

	source := newCluster(t)
	tenant := source.fill("acme")
	source.passed()
	source.exec(`INSERT INTO tenant_moves (tenant_id, state, target) VALUES ($1, 'left', $2)`, tenant, identity)
	err = tenantmove.Stay(t.Context(), source.Pool, target.Pool, tenant)
	if !errors.Is(err, tenantmove.ErrRefused) || !strings.Contains(err.Error(), "is a standby") {
		t.Errorf("it stays: %v", err)
	}
	_, err = tenantmove.Move(t.Context(), source.Pool, target.Pool, tenant, patience)
	if !errors.Is(err, tenantmove.ErrRefused) || !strings.Contains(err.Error(), "is a standby") {
		t.Errorf("it moves: %v", err)
	}
	if got := source.lines(`SELECT state FROM tenant_moves`); got != "left" {
		t.Errorf("it is noted as %q", got)
	}
}
