package idempotency

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DaysAhead is how many days ahead have partitions, so that upkeep may fail for a week.
const DaysAhead = 7

// Partitions counts what KeepPartitions did.
type Partitions struct{ Made, Dropped int }

// KeepPartitions makes the partitions of the coming days and drops those whose answers are no
// longer kept, in two transactions. It holds up a writer for at most 50 ms: if it would have to
// wait longer itself it gives up with SQLSTATE 55P03, so call it again. It drops nothing until a
// program has called ExtendRetention.
func KeepPartitions(ctx context.Context, db Beginner) (p Partitions, err error) {
	if p.Made, err = MakePartitions(ctx, db); err != nil {
		return p, err
	}

	readCommitted := pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
	err = pgx.BeginTxFunc(ctx, db, readCommitted, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT idempotency_keys_drop_partitions()`).Scan(&p.Dropped)
	})
	if err != nil {
		return p, fmt.Errorf("drop idempotency key partitions: %w", err)
	}
	return p, nil
}

// MakePartitions makes the partitions of today and of the coming days, and returns how many it
// made. It blocks neither readers nor writers, and concurrent calls are safe.
func MakePartitions(ctx context.Context, db Beginner) (made int, err error) {
	readCommitted := pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
	err = pgx.BeginTxFunc(ctx, db, readCommitted, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT idempotency_keys_make_partitions($1)`, DaysAhead).Scan(&made)
	})
	if err != nil {
		return 0, fmt.Errorf("make idempotency key partitions: %w", err)
	}
	return made, nil
}

// MissingDay reports whether err comes from a transaction that found no partition for today,
// because nothing made partitions for a week. Nothing was done: call MakePartitions and run it
// again.
func MissingDay(err error) bool {
	var e *pgconn.PgError

	// A CHECK constraint has the same code (check_violation), and a name.
	return errors.As(err, &e) && e.Code == "23514" &&
		e.TableName == "idempotency_keys" && e.ConstraintName == "" &&
		!errors.Is(err, ErrOutcomeUnknown)
}
