package payments

import (
	"context"
	"fmt"
	"time"

	"github.com/oncepay/oncepay/internal/idempotency"
)

// Waiting counts the operations that have no result.
type Waiting struct {
	Pending  int64         // never sent
	Unknown  int64         // perhaps executed; sent again by itself
	Operator int64         // perhaps executed; waits for an operator
	Oldest   time.Duration // age of the oldest, those that wait for an operator aside; 0: there is none

	// Whether they move: zero and empty if there is none.
	Since     time.Time // when the oldest that waits for no operator was created
	LastEnded time.Time // when the last of the newest 100 operations of all ended
	Error     string    // the last error of one that is due again
}

// By psp_operations_due, which holds these rows alone, and by the end of the primary key. They are few while the PSP works. Of
// what an outage leaves, 100,000 took 0.3 s on a busy machine of two cores.
const countWaiting = `
SELECT count(*) FILTER (WHERE state = 'pending' AND next_try_at < 'infinity'),
    count(*) FILTER (WHERE state = 'unknown' AND next_try_at < 'infinity'),
    count(*) FILTER (WHERE next_try_at = 'infinity'),
    coalesce(greatest(now() - min(created_at) FILTER (WHERE next_try_at < 'infinity'), '0'), '0'),
    min(created_at) FILTER (WHERE next_try_at < 'infinity'),
    (SELECT max(ended_at) FROM (SELECT ended_at FROM psp_operations ORDER BY id DESC LIMIT 100) newest),
    coalesce((SELECT last_error FROM psp_operations
              WHERE state IN ('pending', 'unknown') AND next_try_at < 'infinity' AND last_error <> ''
                AND ` + hasNotLeft + `
              ORDER BY next_try_at LIMIT 1), '')
FROM psp_operations WHERE state IN ('pending', 'unknown') AND ` + hasNotLeft

// CountWaiting counts the operations that have no result.
func CountWaiting(ctx context.Context, db idempotency.Querier) (w Waiting, err error) {
	var since, ended *time.Time
	err = db.QueryRow(ctx, countWaiting).Scan(&w.Pending, &w.Unknown, &w.Operator, &w.Oldest,
		&since, &ended, &w.Error)
	if err != nil {
		return Waiting{}, fmt.Errorf("count PSP operations without a result: %w", err)
	}

	if since != nil {
		w.Since = *since
	}
	if ended != nil {
		w.LastEnded = *ended
	}
	return w, nil
}
