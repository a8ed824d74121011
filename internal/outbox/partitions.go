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

// DaysAhead is for how many days to come there are partitions: a week of nobody looking.
const DaysAhead = 7

// Partitions is what KeepPartitions did.
type Partitions struct{ Made, Dropped int }

// KeepPartitions makes the outbox's partitions of the coming days and drops those that are older than keep and were sent
// by every relay, in two transactions. A writer waits at most 50 ms for it; when it would wait longer itself, it gives up
// with SQLSTATE 55P03: call it again.
func KeepPartitions(ctx context.Context, db *pgxpool.Pool, keep time.Duration) (p Partitions, err error) {
	if p.Made, err = MakePartitions(ctx, db); err != nil {
		return p, err
	}
	if err := db.QueryRow(ctx, `SELECT outbox_events_drop_partitions($1)`, keep).Scan(&p.Dropped); err != nil {
		return p, fmt.Errorf("drop outbox partitions: %w", err)
	}
	return p, nil
}

// Beginner starts transactions. A *pgxpool.Pool is one.
type Beginner interface {
	BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error)
}

// MakePartitions makes the outbox's partitions of today and of the coming days, and returns how many it made. It holds up no
// reader and no writer, and many may call it at once.
func MakePartitions(ctx context.Context, db Beginner) (made int, err error) {
	err = pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT outbox_events_make_partitions($1)`, DaysAhead).Scan(&made)
	})
	if err != nil {
		return 0, fmt.Errorf("make outbox partitions: %w", err)
	}
	return made, nil
}

// MissingDay reports whether err is that of a transaction whose events found no partition for their day, because nothing made
// partitions for a week. Roll it back, call MakePartitions and run it again.
func MissingDay(err error) bool {
	var e *pgconn.PgError
	// A CHECK constraint has the same code (check_violation), and a name.
	return errors.As(err, &e) && e.Code == "23514" && e.TableName == "outbox_events" && e.ConstraintName == ""
}
