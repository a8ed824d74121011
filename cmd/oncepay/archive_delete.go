package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/jackc/pgx/v5"
)

// deleteRows is how many rows one transaction deletes: 60 ms at 17,000 a second. The API waits 200 ms
// for a row.
const deleteRows = 1000

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

// archivedKeys are the columns that rows of a file are deleted by. Refunds and commands go with their
// payment.
var archivedKeys = map[string][]string{
	entriesFile:  {"account_id", "entry_no"},
	paymentsFile: {"tenant_id", "id", "version"},
}

// deleteDay deletes exactly the rows that the files of a day hold. Crash point: some are deleted. The
// openings carry them all, so the books are right, and the next run deletes the rest.
func (done *archived) deleteDay(
	ctx context.Context, db *pgx.Conn, folder string, m manifest, whole verified,
) error {
	var none int64
	for _, d := range []struct {
		file, query   string
		deleted, kept *int64
	}{
		{entriesFile, deleteEntries, &done.DeletedEntries, &none},
		{paymentsFile, deletePayments, &done.DeletedPayments, &done.KeptPayments},
	} {
		n := 0
		got, err := readBatches(folder, d.file, func(b batch) error {
			if n >= len(whole[d.file]) || b.hash() != whole[d.file][n] {
				return errChanged
			}
			n++
			deleted, kept, err := b.delete(ctx, db, d.query)
			*d.deleted += deleted
			*d.kept += kept
			return err
		})
		if err == nil && got != m.file(d.file) {
			err = errChanged
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var errChanged = errors.New("a file is not what it was when it was compared with its manifest: " +
	"only rows from before that place were deleted; bring back the folder from its copy")

// verified are the hashes of all batches of files that were what their manifest says. A file is read
// once more to delete, and each batch must be the one that was compared.
type verified map[string][]string

// verify compares the files of a day with its manifest.
func (m manifest) verify(folder string) (verified, error) {
	whole := make(verified)
	for _, want := range m.Files {
		got, err := readBatches(folder, want.Name, func(b batch) error {
			whole[want.Name] = append(whole[want.Name], b.hash())
			return nil
		})
		if err != nil {
			return nil, err
		}
		if got != want {
			return nil, fmt.Errorf("%s in %s is not what its manifest says: nothing was deleted of this day",
				want.Name, folder)
		}
	}
	return whole, nil
}

// batch is the keys of rows that one transaction deletes, a list for each column.
type batch [][]string

// readBatches reads a file to its end, like readBack.
func readBatches(folder, name string, each func(batch) error) (file, error) {
	path, columns := filepath.Join(folder, name), archivedKeys[name]
	if columns == nil {
		return readBack(path, nil)
	}

	b := make(batch, len(columns))
	f, err := readBack(path, func(row map[string]string) error {
		for i, column := range columns {
			b[i] = append(b[i], row[column])
		}
		if len(b[0]) < deleteRows {
			return nil
		}
		full := b
		b = make(batch, len(columns))
		return each(full)
	})
	if err == nil && len(b[0]) > 0 {
		err = each(b)
	}
	return f, err
}

func (b batch) hash() string {
	hash := sha256.New()
	for _, column := range b {
		fmt.Fprintf(hash, "%q", column)
	}
	return string(hash.Sum(nil))
}

func (b batch) delete(ctx context.Context, db *pgx.Conn, query string) (deleted, kept int64, err error) {
	args := make([]any, len(b))
	for i := range args {
		args[i] = b[i]
	}
	if err := db.QueryRow(ctx, query, args...).Scan(&deleted, &kept); err != nil {
		return 0, 0, fmt.Errorf("delete rows that are in the archive: %w", err)
	}
	return deleted, kept, nil
}
