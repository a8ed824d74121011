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

// A pooler that gives a session from client to client (PgBouncer in transaction mode) drops the parameters of a connection
// when it is told to, and is no place for settings of a session's own. There the role has the settings. See "Behind a pooler" in
// docs/operating.md.

// What neither the connection, nor the role, nor the server's configuration has set.
const selectUnset = `
SELECT coalesce(string_agg(name, ', ' ORDER BY name), '') FROM pg_settings WHERE name = ANY($1) AND source = 'default'`

// limited returns an error when a session does not have the settings: its statements would run without limits, and by
// other plans, and nobody would notice.
func limited(ctx context.Context, conn *pgx.Conn) error {
	names := append(slices.Collect(maps.Keys(settings)), "transaction_timeout")
	names = slices.DeleteFunc(names, func(name string) bool {
		return strings.HasPrefix(name, "tcp_") // between pooler and server, which have settings for it
	})
	var unset string
	if err := conn.QueryRow(ctx, selectUnset, names).Scan(&unset); err != nil {
		return err
	}
	if unset != "" {
		return fmt.Errorf("a pooler dropped %s: set them for the role %s, see \"Behind a pooler\" in docs/operating.md", unset, conn.Config().User)
	}
	return nil
}

// A setting that a session makes would stay with it when a pooler gives it to the next client. So it is made only where the
// connection's own parameters have arrived: there is no pooler then, or one that shares no session.
const limitTransaction = `
SELECT set_config('transaction_timeout', '` + transactionTimeout + `', false) FROM pg_settings WHERE name = 'statement_timeout' AND source = 'client'`

// limitTransactions sets transaction_timeout where there is one. As a connection parameter it would be fatal before
// Postgres 17.
func limitTransactions(ctx context.Context, conn *pgx.Conn) error {
	major, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), ".")
	if n, err := strconv.Atoi(major); err != nil || n < 17 {
		return nil // a beta ("18beta1") goes without
	}
	if _, set := conn.Config().RuntimeParams["transaction_timeout"]; set {
		return nil
	}
	if _, err := conn.Exec(ctx, limitTransaction); err != nil {
		return fmt.Errorf("limit transactions: %w", err)
	}
	return nil
}
