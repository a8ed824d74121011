package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// All of a day is read, so hash joins are the cheapest way, and no limit of a role or database may end
// it: the session rests while files are read back. Not every server has each limit (Postgres 17). The
// files of an archived day are all that is left of it, so its folder is never written again. They read
// the same whatever a role or database prefers.
const beginArchive = `
SELECT EXISTS (SELECT FROM archived_days WHERE day >= $1),
       (SELECT system_identifier FROM pg_control_system()) || '/' || current_database(),
       set_config('enable_hashjoin', 'on', true), set_config('work_mem', '256MB', true),
       (SELECT count(set_config(name, '0', true)) FROM pg_settings
        WHERE name IN ('statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout')),
       set_config('timezone', 'UTC', true), set_config('datestyle', 'ISO', true),
       set_config('intervalstyle', 'postgres', true), set_config('bytea_output', 'hex', true)`

// isOpen is a payment that has not ended. Those of a tenant that has left end in its next cluster.
// Here they stay for good, and keep no day from being archived.
const isOpen = `(status IN ('authorized', 'processing') OR refunding_minor > 0)`

// {from} and {until} are replaced, because COPY takes no arguments. By payments_processed_at.
const readOpen = `
SELECT id FROM payments
WHERE processed_at >= {from} AND processed_at < {until} AND ` + isOpen + `
  AND tenant_id <> ALL(ARRAY(SELECT tenant_id FROM tenant_moves WHERE state = 'left'))
LIMIT 1`

// The last entry of each account that leaves: those of the day, as far as no later one is numbered
// below them. Entries are out of order by seconds at most; an hour is plenty. What stayed behind for
// that reason leaves with the day after. By ledger_entries_created_at.
const findLast = `
CREATE TEMP TABLE leaving ON COMMIT DROP AS
SELECT account_id, coalesce(o.entry_no, 0) AS opened, coalesce(o.balance_minor, 0) AS opening,
    coalesce(min(e.entry_no) FILTER (WHERE created_at >= {until}) - 1, max(e.entry_no)) AS last
FROM ledger_entries e LEFT JOIN ledger_openings o USING (account_id)
WHERE created_at >= {from}::timestamptz - interval '1 day' AND created_at < {until}::timestamptz + interval '1 hour'
  AND e.entry_no > coalesce(o.entry_no, 0)
GROUP BY 1, 2, 3`

// Without a key and statistics the planner compares every entry with every account.
const prepareLast = `
ALTER TABLE leaving ADD PRIMARY KEY (account_id); ANALYZE leaving`

const selectLeaving = `
SELECT e.* FROM ` + joinLeaving

const joinLeaving = `ledger_entries e JOIN leaving l USING (account_id)
WHERE created_at >= {from}::timestamptz - interval '1 day' AND created_at < {until}
  AND entry_no > l.opened AND entry_no <= l.last`

// Before anything leaves: the entries must lead from the opening to the last one without a gap.
const carryForward = `
WITH sums AS (
  SELECT account_id, l.opened, l.opening, count(*) AS entries, max(entry_no) AS last, sum(amount_minor) AS moved,
      max(balance_after_minor) FILTER (WHERE entry_no = l.last) AS balance
  FROM ` + joinLeaving + `
  GROUP BY 1, 2, 3
), carried AS (
  INSERT INTO ledger_openings (account_id, tenant_id, entry_no, balance_minor)
  SELECT a.id, a.tenant_id, s.last, s.balance FROM sums s JOIN accounts a ON a.id = s.account_id
  WHERE s.last = s.opened + s.entries AND s.balance = s.opening + s.moved
  ON CONFLICT (account_id) DO UPDATE
  SET entry_no = EXCLUDED.entry_no, balance_minor = EXCLUDED.balance_minor
  RETURNING account_id
)
SELECT account_id FROM sums LEFT JOIN carried USING (account_id)
WHERE carried.account_id IS NULL LIMIT 1`

const recordDay = `
INSERT INTO archived_days (day, payments, entries, manifest) VALUES ($1, $2, $3, $4)`

// archiveDay copies a day into files, reads them back, and carries the accounts forward, in one
// transaction. The folder gets its name when it is whole and on the disk, and takes it from no other:
// where a cluster shares the folder with another one, against the rules, the second is refused. Crash
// point: files written, not committed. The day is copied again, beside them.
func archiveDay(
	ctx context.Context, db *pgx.Conn, dir string, day time.Time,
) (m manifest, err error) {
	folder := dayFolder(dir, day)
	at := strings.NewReplacer("{from}", literal(day), "{until}", literal(day.AddDate(0, 0, 1)))

	err = pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		database, err := begin(ctx, tx, day, at)
		if err != nil {
			return err
		}
		if err := makeWay(folder, database); err != nil {
			return err
		}
		part, err := os.MkdirTemp(dir, filepath.Base(folder)+".part-*") // nobody else may read it
		if err != nil {
			return err
		}
		defer os.RemoveAll(part) // of a run that failed; what is left says so in its name

		m = manifest{Day: day.Format(time.DateOnly), Database: database}
		for _, f := range files {
			query := at.Replace(f.query)
			copied, err := copyOut(ctx, tx, part, f.name, query)
			if err != nil {
				return fmt.Errorf("copy %s: %w", f.name, err)
			}
			if err := compare(ctx, tx, copied, query, f.sum); err != nil {
				return err
			}
			m.Files = append(m.Files, copied)
		}

		hash, err := m.write(part)
		if err != nil {
			return err
		}
		if err := name(part, folder); err != nil { // before rows may be deleted
			return err
		}
		if err := carry(ctx, tx, at.Replace(carryForward)); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, recordDay, day, m.file(paymentsFile).Rows, m.file(entriesFile).Rows, hash)
		return err
	})
	return m, err
}

func literal(day time.Time) string { return day.Format("'2006-01-02T00:00:00Z'") }

// begin refuses a day that cannot leave, and finds what does. It returns the name of the database.
func begin(
	ctx context.Context, tx pgx.Tx, day time.Time, at *strings.Replacer,
) (database string, err error) {
	var before bool
	err = tx.QueryRow(ctx, beginArchive, day).Scan(&before, &database, nil, nil, nil, nil, nil, nil, nil)
	if err != nil {
		return "", err
	}
	if before {
		return "", errors.New("the day is in the archive already: its files stay as they are")
	}

	var open uuid.UUID
	err = tx.QueryRow(ctx, at.Replace(readOpen)).Scan(&open)
	if err == nil {
		return "", fmt.Errorf("payment %s of that day has not ended: "+
			"see oncepay psp list, or whether a worker releases what has expired", open)
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return "", err
	}

	if _, err = tx.Exec(ctx, at.Replace(findLast)); err == nil {
		_, err = tx.Exec(ctx, prepareLast, pgx.QueryExecModeSimpleProtocol)
	}
	return database, err
}

// name gives a folder that is whole its name. Rename replaces no folder that has something in it.
func name(part, folder string) error {
	if err := syncFolder(part); err != nil {
		return err
	}
	switch err := os.Rename(part, folder); {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%w: another database may archive to the same folder", err)
	case err != nil:
		return err
	}
	return syncFolder(filepath.Dir(folder))
}

// makeWay lets no day that is whole be overwritten: its rows may be in no database any more. One of
// another database is refused. One of this database that it knows nothing of, because a run was cut
// off or the database was restored, is put aside.
func makeWay(folder, database string) error {
	if _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist) {
		return os.MkdirAll(filepath.Dir(folder), 0o700)
	}

	text, err := os.ReadFile(filepath.Join(folder, manifestFile))
	m := manifest{Database: database}
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the manifest that is there: %w", err)
	}
	if m.Database != database {
		return fmt.Errorf("%s has this day of database %q already, this one is %q: "+
			"give each a folder of its own", folder, m.Database, database)
	}
	return os.Rename(folder, folder+time.Now().UTC().Format(".before-20060102T150405.000Z"))
}

// compare compares a file, as it was read back, with the rows that it was made from.
func compare(ctx context.Context, tx pgx.Tx, f file, query, sum string) error {
	var rows int64
	var amount string
	err := tx.QueryRow(ctx, `SELECT count(*), coalesce(sum(`+sum+`), 0)::text FROM (`+query+`) q`).Scan(&rows, &amount)
	if err != nil {
		return fmt.Errorf("count %s: %w", f.Name, err)
	}
	if rows != f.Rows || amount != f.AmountMinor {
		return fmt.Errorf("%s holds %d rows with %s minor units, the database has %d with %s: nothing was deleted",
			f.Name, f.Rows, f.AmountMinor, rows, amount)
	}
	return nil
}

func carry(ctx context.Context, tx pgx.Tx, query string) error {
	var wrong uuid.UUID
	switch err := tx.QueryRow(ctx, query).Scan(&wrong); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("carry accounts forward: %w", err)
	}
	return fmt.Errorf("the entries of account %s do not add up: "+
		"see docs/operating.md, \"Books out of balance\"; nothing was deleted", wrong)
}
