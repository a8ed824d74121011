package idempotency

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// DaysAhead is for how many days to come there are partitions: a week of nobody looking.
const DaysAhead = 7

// Partitions is what KeepPartitions did and found.
type Partitions struct {
	Made, Dropped int
	DefaultRows   int64 // rows in the default partition, up to 1,000; more than none is an alarm
}

// Querier is the part of a pool or connection that KeepPartitions needs.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// KeepPartitions makes the partitions of the coming days and drops those whose answers are no longer promised, in two
// transactions. A writer waits at most 50 ms for it; when it would wait longer itself, it gives up with SQLSTATE 55P03: call
// it again. retention must be no shorter than what the API promises.
func KeepPartitions(ctx context.Context, db Querier, retention time.Duration) (p Partitions, err error) {
	err = db.QueryRow(ctx, `SELECT made, default_rows FROM idempotency_keys_make_partitions($1)`, DaysAhead).
		Scan(&p.Made, &p.DefaultRows)
	if err != nil {
		return Partitions{}, fmt.Errorf("make idempotency key partitions: %w", err)
	}
	err = db.QueryRow(ctx, `SELECT idempotency_keys_drop_partitions($1)`, liveDays(orDefault(retention))).Scan(&p.Dropped)
	if err != nil {
		return p, fmt.Errorf("drop idempotency key partitions: %w", err)
	}
	return p, nil
}
