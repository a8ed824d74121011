package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/jackc/pgx/v5"
)

// deleteRows is how many rows one transaction deletes: a tenth of a second.
const deleteRows = 5000

// By the primary key. A payment that was refunded since it was copied has another version, and stays.
// A refund that waits for the row finds it gone, and the client gets 404.
const deletePayments = `
WITH gone AS (
  DELETE FROM payments p
  USING unnest($1::text[]::uuid[], $2::text[]::uuid[], $3::text[]::bigint[]) t(tenant_id, id, version)
  WHERE p.tenant_id = t.tenant_id AND p.id = t.id AND p.version = t.version
  RETURNING p.id
), refunds AS (
  DELETE FROM refunds USING gone WHERE payment_id = gone.id
), commands AS (
  DELETE FROM payment_commands USING gone WHERE payment_id = gone.id
)
SELECT count(*), (SELECT count(*) FROM payments p
    JOIN unnest($1::text[]::uuid[], $2::text[]::uuid[]) t(tenant_id, id) USING (tenant_id, id)) - count(*)
FROM gone`

// By the primary key. A trigger checks that the openings carry what is deleted.
const deleteEntries = `
WITH gone AS (
  DELETE FROM ledger_entries e
  USING unnest($1::text[]::uuid[], $2::text[]::bigint[]) t(account_id, entry_no)
  WHERE e.account_id = t.account_id AND e.entry_no = t.entry_no
  RETURNING e.account_id
)
SELECT count(*), 0 FROM gone`

// deleteDay deletes exactly the rows that the files of a day hold. Crash point: some are deleted. The
// openings carry them all, so the books are right, and the next run deletes the rest.
func (done *archived) deleteDay(
	ctx context.Context, db *pgx.Conn, folder string, m manifest,
) error {
	var none int64
	for _, d := range []struct {
		file          string
		query         string
		columns       []string
		deleted, kept *int64
	}{
		{entriesFile, deleteEntries, []string{"account_id", "entry_no"}, &done.DeletedEntries, &none},
		{paymentsFile, deletePayments, []string{"tenant_id", "id", "version"}, &done.DeletedPayments, &done.KeptPayments},
	} {
		b := deletion{db: db, query: d.query, columns: d.columns}
		_, err := readBack(filepath.Join(folder, m.file(d.file).Name), func(row map[string]string) error {
			return b.add(ctx, row)
		})
		if err == nil {
			err = b.flush(ctx)
		}
		if err != nil {
			return err
		}
		*d.deleted += b.deleted
		*d.kept += b.kept
	}
	return nil
}

// deletion collects the keys of rows and deletes them together.
type deletion struct {
	db            *pgx.Conn
	query         string
	columns       []string
	keys          [3][]string
	deleted, kept int64
}

func (b *deletion) add(ctx context.Context, row map[string]string) error {
	for i, name := range b.columns {
		b.keys[i] = append(b.keys[i], row[name])
	}
	if len(b.keys[0]) < deleteRows {
		return nil
	}
	return b.flush(ctx)
}

func (b *deletion) flush(ctx context.Context) error {
	if len(b.keys[0]) == 0 {
		return nil
	}

	args := make([]any, len(b.columns))
	for i := range args {
		args[i] = b.keys[i]
	}
	var deleted, kept int64
	if err := b.db.QueryRow(ctx, b.query, args...).Scan(&deleted, &kept); err != nil {
		return fmt.Errorf("delete rows that are in the archive: %w", err)
	}

	b.deleted, b.kept, b.keys = b.deleted+deleted, b.kept+kept, [3][]string{}
	return nil
}
