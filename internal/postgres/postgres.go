// Package postgres opens the connection pools of all programs, so that they survive the same
// failures in the same way.
//
// Promise: no statement, lock, open transaction or dead peer holds a program up for longer than the
// limits below, and a connection that writes goes to the primary. Not promised: that the server
// stays there; the user of the pool waits outages out.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// settings of every session. One that the URL sets itself wins.
var settings = map[string]string{
	"statement_timeout": "3s", // no statement here takes a tenth of it
	"lock_timeout":      "2s",
	// How long a host that vanished in the middle of a transaction keeps its claims and row locks.
	"idle_in_transaction_session_timeout": "5s",

	// A host that vanished without a transaction must not keep its connection for two hours.
	"tcp_keepalives_idle":     "10",
	"tcp_keepalives_interval": "5",
	"tcp_keepalives_count":    "3",

	// Every statement of these programs uses an index, in the index's order, and has one plan
	// whatever its arguments: the one that test/plans checks. Left to itself the planner scans and
	// sorts where a table was empty or never analysed, or where statistics show a busy account, and
	// a connection keeps such a plan when the table has grown.
	"enable_seqscan":    "off",
	"enable_bitmapscan": "off",
	"enable_hashjoin":   "off",
	"enable_mergejoin":  "off",
	"plan_cache_mode":   "force_generic_plan",
	// Where a scan is the only way, its cost is now so high (up to Postgres 17) that compiling it
	// seems worthwhile: measured 0.9 s for a table of 8 rows.
	"jit": "off",
}

const (
	// A transaction of many short statements escapes the limits above.
	transactionTimeout = "10s"

	// A program that cannot reach its database must say so within five seconds of its start.
	connectTimeout = 3 * time.Second

	// How long a peer may leave sent data or probes unacknowledged before the connection is given
	// up. Without it a statement sent to a host that vanished waits for a quarter of an hour.
	peerTimeout = 10 * time.Second
)

// Open returns a pool of at most max connections, after one of them answered and has the settings
// above. app is their application_name. Errors are one line and never show the password.
//
// Connections go to a server that takes writes, unless the URL has another target_session_attrs.
// more holds the settings of one program.
func Open(
	ctx context.Context, url, app string, max int, log *slog.Logger, more ...func(*pgx.ConnConfig),
) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		// Not the driver's text: it hides passwords on a best-effort basis only.
		return nil, errors.New("open the database: the driver cannot read the URL")
	}

	cfg.MaxConns = int32(max) // config allows 1,000 at most
	cfg.MinConns = min(cfg.MinConns, cfg.MaxConns)
	cfg.MinIdleConns = min(cfg.MinIdleConns, cfg.MaxConns)
	cfg.PingTimeout = 2 * time.Second
	cfg.AfterConnect = limitTransactions
	configure(cfg.ConnConfig, url, app)
	for _, set := range more {
		set(cfg.ConnConfig)
	}

	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open the database: %s", oneLine(err))
	}
	if err := ping(ctx, pool, app, log); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// configure sets the limits of a connection.
func configure(conn *pgx.ConnConfig, url, app string) {
	// For peers that vanished.
	conn.ConnectTimeout = connectTimeout
	conn.DialFunc = (&net.Dialer{
		Timeout: connectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: peerTimeout / 2, Interval: peerTimeout / 5, Count: 3,
		},
		Control: setTCPUserTimeout,
	}).DialContext

	if conn.ValidateConnect == nil && !strings.Contains(url, "target_session_attrs=") {
		conn.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	// A demoted primary answers but refuses every write (25006): close such a connection.
	conn.OnPgError = func(_ *pgconn.PgConn, e *pgconn.PgError) bool {
		return e.Code != "25006" && e.SeverityUnlocalized != "FATAL"
	}

	// What the URL sets itself stays.
	setDefault(conn.RuntimeParams, "application_name", app)
	for name, value := range settings {
		setDefault(conn.RuntimeParams, name, value)
	}
}

// ping opens the first connection. The whole takes connectTimeout at most, which for a single
// attempt does not bound several hosts.
func ping(ctx context.Context, pool *pgxpool.Pool, app string, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()

	conn := pool.Config().ConnConfig
	version, err := serverVersion(ctx, pool)
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("open the database: no answer from %s, port %d", conn.Host, conn.Port)
	case err != nil:
		return fmt.Errorf("open the database: %s", oneLine(err))
	}

	log.DebugContext(ctx, "database connected", "application_name", app,
		"host", conn.Host, "database", conn.Database, "server_version", version)
	return nil
}

// Close closes the pools that were opened; the others are nil.
func Close(pools ...*pgxpool.Pool) {
	for _, p := range pools {
		if p != nil {
			p.Close()
		}
	}
}

func setDefault(params map[string]string, name, value string) {
	if _, set := params[name]; !set {
		params[name] = value
	}
}

// serverVersion returns the version that the first session reports, after checking its settings.
func serverVersion(ctx context.Context, pool *pgxpool.Pool) (version string, err error) {
	err = pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		version = c.Conn().PgConn().ParameterStatus("server_version")
		return limited(ctx, c.Conn())
	})
	return version, err
}

// oneLine joins the lines on which the driver lists what it tried, without repeating an address
// that it tried with TLS and without.
func oneLine(err error) string {
	// The first line says what was tried, the others what happened at each address.
	head, tried, _ := strings.Cut(err.Error(), "\n\t")
	attempts := slices.Compact(strings.Split(tried, "\n\t"))
	return strings.TrimSpace(head + " " + strings.Join(attempts, "; "))
}
