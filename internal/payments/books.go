package payments

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// All accounts are read, so a scan is the cheapest way. It may have one processor.
const allowScan = `
SELECT set_config(name, CASE name WHEN 'enable_seqscan' THEN 'on' WHEN 'statement_timeout' THEN '50s' ELSE '0' END, true)
FROM pg_settings
WHERE name IN ('enable_seqscan', 'max_parallel_workers_per_gather', 'statement_timeout', 'transaction_timeout')`

// Double entry: what one account has, another one gave. One statement sees one moment.
const sumBalances = `
SELECT currency, sum(balance_minor)::text FROM accounts
GROUP BY currency HAVING sum(balance_minor) <> 0`

// Imbalances returns what all balances of a currency sum to, in minor units, for each currency where
// that is not zero. It reads the whole table of accounts, about 170 MB for a million.
func Imbalances(ctx context.Context, db *pgxpool.Pool) (map[string]string, error) {
	sums, err := sumAll(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("sum balances: %w", err)
	}
	return sums, nil
}

// sumAll only reads, so its transaction is rolled back.
func sumAll(ctx context.Context, db *pgxpool.Pool) (map[string]string, error) {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := tx.Exec(ctx, allowScan); err != nil {
		return nil, err
	}

	rows, err := tx.Query(ctx, sumBalances)
	if err != nil {
		return nil, err
	}
	sums := map[string]string{}
	var currency, sum string
	_, err = pgx.ForEachRow(rows, []any{&currency, &sum}, func() error {
		sums[currency] = sum
		return nil
	})
	return sums, err
}

// The primary keys of all three, in order. The newest ten entries of each account: the last is what
// the account's row says, and each follows from the one before it. Older ones were among the newest
// once. Where entries were archived, the account's opening takes the place of what came before.
const checkAccounts = `
SELECT a.id, (e.found = least(a.entry_count - a.opened, 10) AND e.last = a.entry_count
    AND e.balance = a.balance_minor AND e.in_line) IS NOT TRUE
FROM (
  SELECT a.*, coalesce(o.entry_no, 0) AS opened, coalesce(o.balance_minor, 0) AS opening
  FROM (SELECT * FROM accounts WHERE id > $1 ORDER BY id LIMIT $2) a
  LEFT JOIN ledger_openings o ON o.account_id = a.id) a
CROSS JOIN LATERAL (
  SELECT count(*) AS found, coalesce(max(entry_no), a.opened) AS last,
      coalesce(max(balance_after_minor) FILTER (WHERE entry_no = a.entry_count), a.opening) AS balance,
      coalesce(bool_and(currency = a.currency
          AND balance_after_minor::numeric - amount_minor = coalesce(before, start)), true) AS in_line
  FROM (
    SELECT *, lag(balance_after_minor) OVER (ORDER BY entry_no) AS before,
        CASE entry_no WHEN a.opened + 1 THEN a.opening
                      ELSE balance_after_minor::numeric - amount_minor END AS start
    FROM ledger_entries
    WHERE account_id = a.id AND entry_no > greatest(a.entry_count - 10, a.opened)) newest) e
ORDER BY a.id`

// CheckAccounts compares accounts with their newest ledger entries, and returns those that do not
// agree. It takes up to limit accounts, in the order of their ids, from behind after. next is where
// to go on; uuid.Nil: there are no more.
func CheckAccounts(
	ctx context.Context, db *pgxpool.Pool, after uuid.UUID, limit int,
) (wrong []uuid.UUID, next uuid.UUID, err error) {
	rows, err := db.Query(ctx, checkAccounts, after, limit)
	if err != nil {
		return nil, after, fmt.Errorf("check accounts: %w", err)
	}

	var id uuid.UUID
	var isWrong bool
	checked := 0
	_, err = pgx.ForEachRow(rows, []any{&id, &isWrong}, func() error {
		checked++
		if isWrong {
			wrong = append(wrong, id)
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, after, fmt.Errorf("check accounts: %w", err)
	case checked < limit:
		return wrong, uuid.Nil, nil
	}
	return wrong, id, nil
}
