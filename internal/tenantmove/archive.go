package tenantmove

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// No day is archived meanwhile: `oncepay archive` takes the same lock.
const lockArchive = `SELECT pg_try_advisory_xact_lock(hashtext('oncepay archive'))`

// A statement of its own, behind the lock: what it sees stays so.
const archivedTo = `
SELECT count(*) FILTER (WHERE deleted_at IS NULL), coalesce(max(day)::text, 'none') FROM archived_days`

// By payments_processed_at and ledger_entries_created_at.
const hasOlder = `
SELECT EXISTS (SELECT FROM payments WHERE processed_at < ($1::date + 1)::timestamp AT TIME ZONE 'utc')
    OR EXISTS (SELECT FROM ledger_entries WHERE created_at < ($1::date + 1)::timestamp AT TIME ZONE 'utc')`

var errArchiving = fmt.Errorf(
	"%w: days are being archived, or a tenant is being copied: let that finish; days that are archived "+
		"and not deleted need `oncepay archive --delete`", ErrRefused)

var archivedDays = table{"archived_days", "true"}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// sameArchive refuses a move between databases whose books begin on different days: what the one has
// archived, the other would miss, or keep for good. A target whose books are younger than all that
// the source has archived may adopt the source's days: its books then begin there, too.
//
// A READ COMMITTED transaction keeps the lock until it ends. A connection must have it already.
func sameArchive(ctx context.Context, source, target querier) (adopt bool, err error) {
	var last [2]string
	for i, tx := range []querier{source, target} {
		var locked bool
		if err := tx.QueryRow(ctx, lockArchive).Scan(&locked); err != nil {
			return false, fmt.Errorf("lock the archive: %w", err)
		}
		var undeleted int
		if err := tx.QueryRow(ctx, archivedTo).Scan(&undeleted, &last[i]); err != nil {
			return false, fmt.Errorf("look at what is archived: %w", err)
		}
		if !locked || undeleted > 0 {
			return false, errArchiving
		}
	}
	if last[0] == last[1] {
		return false, nil
	}

	older := true
	if last[1] == "none" {
		if err := target.QueryRow(ctx, hasOlder, last[0]).Scan(&older); err != nil {
			return false, fmt.Errorf("look for older books at the target: %w", err)
		}
	}
	if older {
		return false, fmt.Errorf("%w: the last archived day is %s at the source and %s at the target: "+
			"archive both up to the same day", ErrRefused, last[0], last[1])
	}
	return true, nil
}

var errOnlyLooked = errors.New("only looked")

// canShareArchive is sameArchive before anything is done, so that a tenant is not fenced for a move
// that will be refused.
func canShareArchive(ctx context.Context, source, target *pgxpool.Pool) error {
	err := pgx.BeginTxFunc(ctx, target, readCommitted, func(to pgx.Tx) error {
		return pgx.BeginTxFunc(ctx, source, readCommitted, func(from pgx.Tx) error {
			if _, err := sameArchive(ctx, from, to); err != nil {
				return err
			}
			return errOnlyLooked // rolls back, and unlocks
		})
	})
	if errors.Is(err, errOnlyLooked) {
		return nil
	}
	return err
}

// adoptArchive lets the target's books begin where the source's do.
func adoptArchive(ctx context.Context, source, target pgx.Tx) error {
	_, err := copyTable(ctx, source, target, archivedDays, uuid.Nil)
	return err
}
