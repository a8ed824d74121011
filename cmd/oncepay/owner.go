package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/migrations"
)

// connectTimeout leaves room in the five seconds within which a wrong address must be reported.
const connectTimeout = 3 * time.Second

// settings are the parameters of every session of the owner.
func settings() map[string]string {
	return map[string]string{
		// Fail for a login that may not see every row, rather than show it only those it sees.
		"row_security": "off",
		// Statements over all partitions look expensive to the planner, which would compile them
		// for seconds to run them for a millisecond.
		"jit": "off",
		// Large tables are read by an index, as in internal/postgres. Otherwise the planner, which
		// guesses how many transactions a snapshot lists, joins them to the whole outbox.
		"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off",
	}
}

// connect opens the database as its owner and checks that its schema is the one this program knows.
// The caller closes the connection.
func (c *call) connect(ctx context.Context) (*pgx.Conn, error) {
	cfg, err := config.LoadOwner(c.getenv)
	if err != nil {
		return nil, err
	}
	postgres.WarnPlainText(ctx, slog.Default(), "DATABASE_URL", cfg.DatabaseURL)

	database, err := pgx.ParseConfig(cfg.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("connect to database: %w", err)
	}
	maps.Copy(database.RuntimeParams, settings())

	// The time limit is for connecting only, not for what the connection is used for.
	dialCtx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(dialCtx, database)
	if err != nil {
		return nil, fmt.Errorf("connect to database: %w", err)
	}

	if err := migrations.Check(ctx, conn); err != nil {
		conn.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return conn, nil
}

// openPool opens a pool of connections like conn, for what a single one cannot do. The caller
// closes it.
func openPool(ctx context.Context, conn *pgx.Conn) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(conn.Config().ConnString())
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	// ConnConfig also has what the connection string lacks: the session settings.
	cfg.ConnConfig = conn.Config()

	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	return pool, nil
}

// change runs fn in one transaction of the owner.
func (c *call) change(ctx context.Context, fn func(pgx.Tx) error) error {
	return c.inTransaction(ctx, pgx.TxOptions{}, fn)
}

// look runs fn in one read-only transaction that sees one state of the database.
func (c *call) look(ctx context.Context, fn func(pgx.Tx) error) error {
	return c.inTransaction(
		ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, fn)
}

func (c *call) inTransaction(
	ctx context.Context, options pgx.TxOptions, fn func(pgx.Tx) error,
) error {
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return pgx.BeginTxFunc(ctx, conn, options, fn)
}
