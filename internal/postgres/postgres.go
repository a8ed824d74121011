// Package postgres opens the connection pools of all programs, so that they survive the same failures in the same way.
//
// Promise: no statement, lock, open transaction or dead peer holds a program up for longer than the limits below, and a
// connection that writes goes to the primary. Not promised: that the server is there later; whoever uses the pool waits
// outages out.
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

// settings of every session. A URL that names one itself is followed.
var settings = map[string]string{
	"statement_timeout": "3s", // no statement here takes a tenth of it
	"lock_timeout":      "2s",
	// A host that vanished in the middle of a transaction holds its claims and row locks for so long.
	"idle_in_transaction_session_timeout": "5s",

	// And one that vanished without a transaction does not hold its connection for two hours.
	"tcp_keepalives_idle":     "10",
	"tcp_keepalives_interval": "5",
	"tcp_keepalives_count":    "3",

	// Every statement of these programs goes by an index, in the index's order, and has one plan whatever its arguments: the one that
	// test/plans looks at. Left to itself the planner scans and sorts where a table was empty or never analysed, or where the
	// statistics know an account as busy, and a connection keeps such a plan when the table has grown.
	"enable_seqscan":    "off",
	"enable_bitmapscan": "off",
	"enable_hashjoin":   "off",
	"enable_mergejoin":  "off",
	"plan_cache_mode":   "force_generic_plan",
	// Where there is no other way than a scan, it now counts as so dear (up to Postgres 17) that compiling it seems worth while:
	// 0.9 s for a table of 8 rows, measured.
	"jit": "off",
}

const (
	// A transaction of many short statements escapes the limits above.
	transactionTimeout = "10s"

	// A program that cannot reach its database has to say so within five seconds of its start.
	connectTimeout = 3 * time.Second

	// How long a peer may leave sent data unacknowledged, or stay silent when asked, before the connection is given up.
	// Without it a statement sent to a host that vanished waits for a quarter of an hour.
	peerTimeout = 10 * time.Second
)

// Open returns a pool of at most max connections after one of them has answered and was found to have the settings above.
// The server knows them as app. Its errors are one line and never show the password.
//
// Connections go to a server that takes writes, unless the URL says otherwise with target_session_attrs. more are the
// settings of one program.
func Open(ctx context.Context, url, app string, max int, log *slog.Logger, more ...func(*pgx.ConnConfig)) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		// Not the driver's text: it hides passwords on a best-effort basis only.
		return nil, errors.New("open the database: the driver cannot read the URL")
	}
	cfg.MaxConns = int32(max) // config allows 1,000 at most
	cfg.MinConns, cfg.MinIdleConns = min(cfg.MinConns, cfg.MaxConns), min(cfg.MinIdleConns, cfg.MaxConns)
	cfg.PingTimeout = 2 * time.Second
	cfg.AfterConnect = limitTransactions

	conn := cfg.ConnConfig
	conn.ConnectTimeout = connectTimeout
	conn.DialFunc = (&net.Dialer{
		Timeout:         connectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: peerTimeout / 2, Interval: peerTimeout / 5, Count: 3},
		Control:         limitSilence,
	}).DialContext
	if conn.ValidateConnect == nil && !strings.Contains(url, "target_session_attrs=") {
		conn.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	// A primary that was demoted answers, and refuses every write (25006): such a connection is not to be used again.
	conn.OnPgError = func(_ *pgconn.PgConn, e *pgconn.PgError) bool {
		return e.Code != "25006" && e.SeverityUnlocalized != "FATAL"
	}
	setDefault(conn.RuntimeParams, "application_name", app)
	for name, value := range settings {
		setDefault(conn.RuntimeParams, name, value)
	}

	for _, set := range more {
		set(conn)
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open the database: %s", oneLine(err))
	}
	// The limit of one attempt does not bound several hosts.
	pingCtx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	version, err := serverVersion(pingCtx, pool)
	if err != nil {
		pool.Close()
		if pingCtx.Err() != nil {
			return nil, fmt.Errorf("open the database: no answer from %s, port %d", conn.Host, conn.Port)
		}
		return nil, fmt.Errorf("open the database: %s", oneLine(err))
	}
	log.DebugContext(ctx, "database connected", "application_name", app, "host", conn.Host, "database", conn.Database, "server_version", version)
	return pool, nil
}

// Close closes those of pools that were opened.
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

// serverVersion is how the first session is tried: it answers, and it has its settings.
func serverVersion(ctx context.Context, pool *pgxpool.Pool) (version string, err error) {
	err = pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		version = c.Conn().PgConn().ParameterStatus("server_version")
		return limited(ctx, c.Conn())
	})
	return version, err
}

// oneLine is for people: the driver lists what it tried, on lines of their own, the same address with TLS and without.
func oneLine(err error) string {
	head, tried, _ := strings.Cut(err.Error(), "\n\t")
	return strings.TrimSpace(head + " " + strings.Join(slices.Compact(strings.Split(tried, "\n\t")), "; "))
}
