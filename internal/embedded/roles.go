package embedded

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A role that exists without LOGIN was made by a migration, not by an operator, and gets LOGIN
// and a password. A caller that loses a race against another one or a migration finds the role as
// wanted.
const createRoles = `
DO $$
DECLARE r text;
BEGIN
    FOREACH r IN ARRAY ARRAY['api_write', 'api_read', 'relay', 'consumer', 'worker'] LOOP
        PERFORM pg_advisory_xact_lock(hashtextextended('oncepay roles', 0));
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = r) THEN
                EXECUTE format('CREATE ROLE %I LOGIN PASSWORD %L', r, r);
            END IF;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END;
        IF EXISTS (SELECT FROM pg_roles WHERE rolname = r AND NOT rolcanlogin) THEN
            EXECUTE format('ALTER ROLE %I LOGIN PASSWORD %L', r, r);
        END IF;
    END LOOP;
END $$`

// CreateRoles makes the login roles of the programs (api_write, api_read, relay, consumer, worker)
// in the cluster at url, each with its name as password. Call it before the migrations, which create
// roles that cannot log in if they find none. Any number of callers may run at once, preferably
// in the same database, whose lock orders them.
func CreateRoles(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("create roles: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))

	if _, err := conn.Exec(ctx, createRoles); err != nil {
		return fmt.Errorf("create roles: %w", err)
	}
	return nil
}
