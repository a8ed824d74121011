package idempotency

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const extendRetention = `
INSERT INTO idempotency_retention AS r (keep) VALUES ($1)
ON CONFLICT (only_row) DO UPDATE SET keep = greatest(r.keep, excluded.keep)
RETURNING r.keep`

// Querier is the part of a pool or connection that reads one row.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// ExtendRetention makes the database keep answers for at least retention, and returns for how long
// it keeps them. Call it when a program starts, before its Claim promises that retention.
//
// These are two numbers. What a program promises is its own setting. What is kept is the longest
// that any program has promised, and every look-up goes back that far. So a program that promises
// less, with an older or a newer configuration, does not make a key pay twice within the time that
// a client was told.
func ExtendRetention(
	ctx context.Context, db Querier, retention time.Duration,
) (kept time.Duration, err error) {
	err = db.QueryRow(ctx, extendRetention, orDefault(retention)).Scan(&kept)
	if err != nil {
		return 0, fmt.Errorf("extend idempotency retention: %w", err)
	}
	return kept, nil
}
