package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/tenantmove"
)

func (o operator) moveTenant() *cobra.Command {
	c := &cobra.Command{
		Use:   "move NAME",
		Short: "Move a tenant to the cluster of TARGET_DATABASE_URL, with all that is its",
		Long: `Moves a tenant to the cluster of TARGET_DATABASE_URL, with its money, keys, credentials and
webhooks. Meanwhile its requests get 503 with Retry-After, and nothing is done; replays and reads go
on until it has left. First what is on its way comes to rest: operations at the PSP, events, webhooks
in flight. Then everything is copied in one transaction and compared.

Killed or failed, run it again, or let the tenant stay. Afterwards send the tenant's requests to the
other cluster: docs/scaling.md.`,
		Example: `  export TARGET_DATABASE_URL=postgres://postgres:secret@other:5432/oncepay
  oncepay tenants move acme
  oncepay tenants move acme --patience 10m --json`,
	}

	var name string
	program.Argument(c, &name, parseName)
	patience := 2 * time.Minute
	program.Flag(c, &patience, "patience", "DURATION",
		"how long to wait until the tenant is at rest; default 2m", parsePatience)

	c.RunE = func(c *cobra.Command, _ []string) error {
		source, tenant, err := o.openWithTenant(c.Context(), name)
		if err != nil {
			return err
		}
		defer source.Close()

		target, err := o.openTarget(c.Context())
		if err != nil {
			return err
		}
		defer target.Close()

		moved, err := tenantmove.Move(c.Context(), source, target, tenant, patience)
		if err != nil {
			return fmt.Errorf("move tenant %q: %w", name, err)
		}
		return program.Show(c, moved, func(w io.Writer) {
			program.Row(w, "TABLE", "ROWS")
			for _, table := range slices.Sorted(maps.Keys(moved.Rows)) {
				program.Row(w, table, moved.Rows[table])
			}
			program.Row(w, "moved to "+moved.Target)
		})
	}
	return c
}

func (o operator) letTenantStay() *cobra.Command {
	c := &cobra.Command{
		Use:   "stay NAME",
		Short: "Give up a move that did not finish: the tenant's requests are executed here again",
		Long: `Gives up a move that did not finish: the tenant's requests are executed here again.
TARGET_DATABASE_URL must be the one of that move: the primary that the target's programs use, and no
copy of it. Refused if that cluster has the tenant, or is being copied to.

With --target-is-lost it is not asked. Only if it never runs again, nor a standby or a restored backup
of it, and the tenant has not moved on from there. A target that was upgraded or copied is not lost:
the tenant is there. Read "Move a tenant" in docs/scaling.md first.`,
		Example: `  export TARGET_DATABASE_URL=postgres://postgres:secret@other:5432/oncepay
  oncepay tenants stay acme
  oncepay tenants stay acme --target-is-lost 7412345678901234567/oncepay`,
	}

	var name string
	program.Argument(c, &name, parseName)
	var lost string
	program.Flag(c, &lost, "target-is-lost", "TARGET",
		"do not ask the target: this one, as oncepay tenants list shows it, is lost for good", parseTarget)

	c.RunE = func(c *cobra.Command, _ []string) error {
		source, tenant, err := o.openWithTenant(c.Context(), name)
		if err != nil {
			return err
		}
		defer source.Close()

		if lost != "" {
			err = tenantmove.StayWithoutTarget(c.Context(), source, lost, tenant)
		} else {
			err = o.stay(c.Context(), source, tenant)
		}
		if err != nil {
			return fmt.Errorf("let tenant %q stay: %w", name, err)
		}
		return program.Show(c, named{tenant, name}, func(w io.Writer) {
			program.Row(w, "stays", name)
		})
	}
	return c
}

// openWithTenant opens the database and finds a tenant there.
func (o operator) openWithTenant(
	ctx context.Context, name string,
) (db *pgxpool.Pool, tenant uuid.UUID, err error) {
	if db, err = o.open(ctx); err != nil {
		return nil, tenant, err
	}
	err = pgx.BeginTxFunc(ctx, db, looks, func(tx pgx.Tx) (err error) {
		tenant, err = credentials.FindTenant(ctx, tx, name)
		return err
	})
	if err != nil {
		db.Close()
		return nil, tenant, err
	}
	return db, tenant, nil
}

func (o operator) stay(ctx context.Context, source *pgxpool.Pool, tenant uuid.UUID) error {
	target, err := o.openTarget(ctx)
	if err != nil {
		return err
	}
	defer target.Close()
	return tenantmove.Stay(ctx, source, target, tenant)
}

func (o operator) openTarget(ctx context.Context) (*pgxpool.Pool, error) {
	cfg, err := config.LoadTarget(o.getenv)
	if err != nil {
		return nil, err
	}
	return openOwned(ctx, "TARGET_DATABASE_URL", cfg.TargetURL)
}

func parseTarget(s string) (string, error) {
	if _, database, ok := strings.Cut(s, "/"); !ok || database == "" {
		return "", errors.New("it must be a system identifier and a database, such as 7412345678901234567/oncepay")
	}
	return s, nil
}

func parsePatience(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, errors.New("it must be a duration, such as 10m")
	}
	return d, nil
}
