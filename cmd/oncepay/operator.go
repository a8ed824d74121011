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

// operator has the commands that work in the database, as its owner.
type operator struct{ getenv func(string) string }

// connectTimeout leaves room in the five seconds within which a wrong address must be reported.
const connectTimeout = 3 * time.Second

// settings are the parameters of every session of the owner.
var settings = map[string]string{
	// Fail for a login that may not see every row, rather than show it only those it sees.
	"row_security": "off",
	// Statements over all partitions look expensive to the planner, which would compile them for
	// seconds to run them for a millisecond.
	"jit": "off",
	// Large tables are read by an index, as in internal/postgres. Otherwise the planner, which
	// guesses how many transactions a snapshot lists, joins them to the whole outbox.
	"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off",
}

// open opens the database as its owner and checks that its schema is the one this program knows.
// The caller closes the pool. No statement has a time limit: a person waits for it, and can stop.
func (o operator) open(ctx context.Context) (*pgxpool.Pool, error) {
	cfg, err := config.LoadOwner(o.getenv)
	if err != nil {
		return nil, err
	}
	postgres.WarnPlainText(ctx, slog.Default(), "DATABASE_URL", cfg.DatabaseURL)

	database, err := pgxpool.ParseConfig(cfg.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("connect to database: %w", err)
	}
	maps.Copy(database.ConnConfig.RuntimeParams, settings)
	db, err := pgxpool.NewWithConfig(ctx, database)
	if err != nil {
		return nil, fmt.Errorf("connect to database: %w", err)
	}

	// The time limit is for connecting only, not for what the connections are used for.
	dialCtx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := db.Ping(dialCtx); err != nil {
		db.Close()
		return nil, fmt.Errorf("connect to database: %w", err)
	}

	if err := migrations.Check(ctx, db); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// change runs fn in one transaction and returns what it made.
func change[T any](
	ctx context.Context, o operator, fn func(context.Context, pgx.Tx) (T, error),
) (T, error) {
	return inTransaction(ctx, o, pgx.TxOptions{}, fn)
}

// snapshot is a read-only transaction that sees one state of the database.
var snapshot = pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}

// look runs fn in a snapshot and returns what it read.
func look[T any](
	ctx context.Context, o operator, fn func(context.Context, pgx.Tx) (T, error),
) (T, error) {
	return inTransaction(ctx, o, snapshot, fn)
}

func inTransaction[T any](
	ctx context.Context, o operator, options pgx.TxOptions,
	fn func(context.Context, pgx.Tx) (T, error),
) (result T, err error) {
	db, err := o.open(ctx)
	if err != nil {
		return result, err
	}
	defer db.Close()

	err = pgx.BeginTxFunc(ctx, db, options, func(tx pgx.Tx) error {
		result, err = fn(ctx, tx)
		return err
	})
	return result, err
}
