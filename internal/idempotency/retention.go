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

// Querier is the part of a pool or connection that asks for one row.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// ExtendRetention has the database keep answers for at least retention, and returns for how long it keeps them. Call it at the start
// of a program, before it promises that retention by Claim.
//
// They are two numbers. What a program promises is its own; what is kept is the longest that any program has promised, and
// every look-up goes back so far, whatever its own program promises. So a program that promises less, of an older
// configuration or a newer one, does not make a key pay twice within the time that a client was told.
func ExtendRetention(ctx context.Context, db Querier, retention time.Duration) (kept time.Duration, err error) {
	if err := db.QueryRow(ctx, extendRetention, orDefault(retention)).Scan(&kept); err != nil {
		return 0, fmt.Errorf("extend idempotency retention: %w", err)
	}
	return kept, nil
}
