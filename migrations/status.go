package migrations

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Migration is one file of the schema.
type Migration struct {
	Version int64
	Name    string
	Applied time.Time // zero: not yet
	Changed bool      // what was applied under this version is not the file that this program has
}

const versioned = `
SELECT to_regclass('goose_db_version') IS NOT NULL, to_regclass('schema_files') IS NOT NULL`

const appliedFiles = `
SELECT v.version_id, coalesce(f.sha256, ''), coalesce(f.applied_at, v.tstamp)
FROM (SELECT DISTINCT ON (version_id) * FROM goose_db_version ORDER BY version_id, id DESC) v
LEFT JOIN schema_files f ON f.version = v.version_id
WHERE v.is_applied`

// Status lists every file of the schema and when it was applied to the database. It changes nothing.
func Status(ctx context.Context, db *pgx.Conn) (all []Migration, err error) {
	var goose, ours bool
	if err := db.QueryRow(ctx, versioned).Scan(&goose, &ours); err != nil {
		return nil, fmt.Errorf("read schema version: %w", err)
	}
	if goose && !ours {
		return nil, fmt.Errorf("%w: the database has goose_db_version and no schema_files: "+
			"another tool made its schema; create the database again with `migrate up`", ErrOutOfStep)
	}

	type row struct {
		Version int64
		Hash    string
		Applied time.Time
	}
	applied := make(map[int64]row)
	if goose {
		rows, err := db.Query(ctx, appliedFiles)
		if err != nil {
			return nil, fmt.Errorf("read applied files: %w", err)
		}
		found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
		if err != nil {
			return nil, fmt.Errorf("read applied files: %w", err)
		}
		for _, r := range found {
			applied[r.Version] = r
		}
	}

	for _, f := range files() {
		r, done := applied[f.version]
		all = append(all, Migration{
			Version: f.version, Name: f.name, Applied: r.Applied, Changed: done && r.Hash != f.hash(),
		})
	}
	return all, nil
}

// Drift returns ErrOutOfStep if a file that was applied is another one now: what would come next was written for a
// schema that the database does not have.
func Drift(all []Migration) error {
	for _, m := range all {
		if m.Changed {
			return fmt.Errorf("%w: %s was changed after it was applied at %s: restore the file, put the change into a new one",
				ErrOutOfStep, m.Name, m.Applied.UTC().Format(time.RFC3339))
		}
	}
	return nil
}
