package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A pooler that shares sessions between clients (PgBouncer in transaction mode) may drop the
// parameters of a connection, and settings made in a session would leak to other clients. There the
// role must have the settings. See "Behind a pooler" in docs/operating.md.

// Settings that neither the connection, nor the role, nor the server's configuration has set.
const selectUnset = `
SELECT coalesce(string_agg(name, ', ' ORDER BY name), '')
FROM pg_settings WHERE name = ANY($1) AND source = 'default'`

// limited returns an error if the session does not have the settings: its statements would silently
// run without limits and with other plans.
func limited(ctx context.Context, conn *pgx.Conn) error {
	names := append(slices.Collect(maps.Keys(settings)), "transaction_timeout")
	names = slices.DeleteFunc(names, func(name string) bool {
		return strings.HasPrefix(name, "tcp_") // pooler and server have settings of their own
	})

	var unset string
	if err := conn.QueryRow(ctx, selectUnset, names).Scan(&unset); err != nil {
		return err
	}
	if unset != "" {
		return fmt.Errorf(
			"a pooler dropped %s: set them for the role %s, see %q in docs/operating.md",
			unset, conn.Config().User, "Behind a pooler")
	}
	return nil
}

// A setting made in a session would stay with it when a pooler hands it to the next client. So it
// is made only if the connection's own parameters have arrived: then there is no pooler, or one
// that does not share sessions.
const limitTransaction = `
SELECT set_config('transaction_timeout', '` + transactionTimeout + `', false)
FROM pg_settings WHERE name = 'statement_timeout' AND source = 'client'`

// limitTransactions sets transaction_timeout if the server has it. As a connection parameter it
// would be fatal before Postgres 17.
func limitTransactions(ctx context.Context, conn *pgx.Conn) error {
	major, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), ".")
	if n, err := strconv.Atoi(major); err != nil || n < 17 {
		return nil // including a beta ("18beta1")
	}

	if _, set := conn.Config().RuntimeParams["transaction_timeout"]; set {
		return nil
	}
	if _, err := conn.Exec(ctx, limitTransaction); err != nil {
		return fmt.Errorf("limit transactions: %w", err)
	}
	return nil
}
