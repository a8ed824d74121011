package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DaysAhead is for how many coming days there are partitions: a week in which nothing needs to
// work.
const DaysAhead = 7

// Partitions is what KeepPartitions did.
type Partitions struct{ Made, Dropped int }

// KeepPartitions makes the partitions of the coming days, and drops those that are older than keep
// and that every relay has sent, in two transactions. A writer waits at most 50 ms for it. When it
// would wait longer itself, it fails with SQLSTATE 55P03: call it again.
func KeepPartitions(ctx context.Context, db *pgxpool.Pool, keep time.Duration) (Partitions, error) {
	made, err := MakePartitions(ctx, db)
	p := Partitions{Made: made}
	if err != nil {
		return p, err
	}

	err = db.QueryRow(ctx, `SELECT outbox_events_drop_partitions($1)`, keep).Scan(&p.Dropped)
	if err != nil {
		return p, fmt.Errorf("drop outbox partitions: %w", err)
	}

	return p, nil
}

// Beginner starts transactions. A *pgxpool.Pool is one.
type Beginner interface {
	BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error)
}

// MakePartitions makes the partitions of today and of the coming days, and returns how many it
// made. It blocks no reader and no writer, and may run any number of times at once.
func MakePartitions(ctx context.Context, db Beginner) (made int, err error) {
	readCommitted := pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
	err = pgx.BeginTxFunc(ctx, db, readCommitted, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT outbox_events_make_partitions($1)`, DaysAhead).Scan(&made)
	})
	if err != nil {
		return 0, fmt.Errorf("make outbox partitions: %w", err)
	}

	return made, nil
}

// MissingDay reports whether err says that there is no partition for today, because nothing made
// partitions for a week. Roll back, call MakePartitions, and run the transaction again.
func MissingDay(err error) bool {
	var e *pgconn.PgError
	// A CHECK constraint has the same code (check_violation), and a name.
	return errors.As(err, &e) && e.Code == "23514" &&
		e.TableName == "outbox_events" && e.ConstraintName == ""
}
