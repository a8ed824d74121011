package idempotency

import (
	"context"
	"fmt"
	"time"
)

const promise = `
INSERT INTO idempotency_retention AS r (keep) VALUES ($1)
ON CONFLICT (only_row) DO UPDATE SET keep = greatest(r.keep, excluded.keep)
RETURNING r.keep`

// Promise tells the database, at the start of a program, for how long it will promise clients to keep answers, and returns for
// how long they are kept: the longest that any program has promised. Give that to Claim and Peek. So an answer outlives a
// program that is configured to forget sooner, and no partition is dropped that somebody has promised.
func Promise(ctx context.Context, db Querier, retention time.Duration) (time.Duration, error) {
	var kept time.Duration
	if err := db.QueryRow(ctx, promise, orDefault(retention)).Scan(&kept); err != nil {
		return 0, fmt.Errorf("promise idempotency retention: %w", err)
	}
	return kept, nil
}
