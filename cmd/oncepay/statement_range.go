package main

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// span is the part of an account's history that a statement shows.
type span struct {
	From   time.Time // 00:00 UTC of its first day
	Until  time.Time // 00:00 UTC behind its last day
	after  int64     // entries up to this number are older
	last   int64     // entries behind this number are newer
	before int64     // balance behind the entry after
	newest bool      // nothing is newer
}

// disorder is more than entries can be out of order: the number is given under the account's lock, the
// time a little earlier.
const disorder = time.Minute

// What archived entries left behind, and the newest day on either side. The newest entry is found by
// the primary key.
const readEnds = `
SELECT coalesce(o.entry_no, 0), coalesce(o.balance_minor, 0),
       coalesce(e.entry_no, o.entry_no, 0), greatest(e.created_at, s.day::timestamp AT TIME ZONE 'utc')
FROM (SELECT $1::uuid AS account_id) a
LEFT JOIN ledger_openings o USING (account_id)
LEFT JOIN LATERAL (
    SELECT entry_no, created_at FROM ledger_entries
    WHERE account_id = a.account_id ORDER BY entry_no DESC LIMIT 1) e ON true
LEFT JOIN LATERAL (
    SELECT day FROM statements WHERE account_id = a.account_id ORDER BY day DESC LIMIT 1) s ON true`

// By the primary key. An entry may be missing where the books are wrong: then the next one counts.
const readEntry = `
SELECT created_at, balance_after_minor FROM ledger_entries
WHERE account_id = $1 AND entry_no >= $2 ORDER BY entry_no LIMIT 1`

// findSpan returns the days before until, or the newest ones if that is zero. Without any, From is zero.
func findSpan(
	ctx context.Context, tx pgx.Tx, account uuid.UUID, until time.Time, days int,
) (s span, err error) {
	var opened, opening, last int64
	var newest *time.Time
	if err := tx.QueryRow(ctx, readEnds, account).Scan(&opened, &opening, &last, &newest); err != nil {
		return s, fmt.Errorf("find the ends of the account's history: %w", err)
	}
	s.before = opening
	if newest == nil {
		s.newest = true
		return s, nil
	}

	end := newest.UTC().Truncate(24*time.Hour).AddDate(0, 0, 1)
	s.Until, s.newest = until, !until.Before(end)
	if until.IsZero() {
		s.Until, s.newest = end, true
	}
	s.From = s.Until.AddDate(0, 0, -days)

	// Entries are numbered without a gap and almost in the order of time, so thirty looks find a day
	// among a billion of them.
	find := func(t time.Time) int64 {
		n := sort.Search(int(last-opened), func(i int) bool {
			at, _, e := entryAt(ctx, tx, account, opened+1+int64(i))
			err = errors.Join(err, e)
			return !at.Before(t)
		})
		return opened + int64(n)
	}
	s.after, s.last = find(s.From.Add(-disorder)), find(s.Until.Add(disorder))
	if err != nil {
		return s, fmt.Errorf("find the entries of the days: %w", err)
	}

	if s.after > opened {
		if _, s.before, err = entryAt(ctx, tx, account, s.after); err != nil {
			return s, fmt.Errorf("find the balance before the days: %w", err)
		}
	}
	return s, nil
}

func entryAt(
	ctx context.Context, tx pgx.Tx, account uuid.UUID, number int64,
) (at time.Time, balance int64, err error) {
	err = tx.QueryRow(ctx, readEntry, account, number).Scan(&at, &balance)
	return at, balance, err
}
