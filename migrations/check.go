package migrations

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Querier is the part of a pgx pool or connection that Check needs.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// ErrOutOfStep says that the schema of the database and the program do not belong together. Its text names what to do.
var ErrOutOfStep = errors.New("schema out of step")

const migrated = `
SELECT to_regclass('goose_db_version') IS NOT NULL AND to_regclass('schema_files') IS NOT NULL`

// goose may keep the rows of what was rolled back, marked: a file is applied if its last mark says so. A file that
// was not applied by Up has no row in schema_files and serves no program but its own. The schema serves what each of
// its files serves: what one took away, a later one does not bring back.
const current = `
SELECT coalesce(max(v.version_id), 0), coalesce(max(coalesce(f.oldest_program, v.version_id)), 0)
FROM (SELECT DISTINCT ON (version_id) version_id, is_applied FROM goose_db_version ORDER BY version_id, id DESC) v
LEFT JOIN schema_files f ON f.version = v.version_id
WHERE v.is_applied`

// Check returns ErrOutOfStep when the schema is older than this program, or newer and no longer serves it: an instance
// that restarts after `migrate up` comes up, and so does the old program when a deploy is taken back.
func Check(ctx context.Context, db Querier) error {
	have, oldest, err := applied(ctx, db)
	if err != nil {
		return err
	}

	want := Version()
	switch {
	case have < want:
		return fmt.Errorf("%w: the database is at version %d, this program needs %d: run `migrate up`", ErrOutOfStep, have, want)
	case want < oldest:
		return fmt.Errorf("%w: the database is at version %d and serves programs from %d on, this one knows only %d: deploy a newer program",
			ErrOutOfStep, have, oldest, want)
	}
	return nil
}

// Applied returns the version of the schema in the database; 0: it has none.
func Applied(ctx context.Context, db Querier) (int64, error) {
	have, _, err := applied(ctx, db)
	return have, err
}

// applied returns the version of the schema, and of the oldest program that it serves.
func applied(ctx context.Context, db Querier) (version, oldest int64, err error) {
	var exists bool
	if err := db.QueryRow(ctx, migrated).Scan(&exists); err != nil {
		return 0, 0, fmt.Errorf("read schema version: %w", err)
	}
	if !exists {
		return 0, 0, nil
	}

	if err := db.QueryRow(ctx, current).Scan(&version, &oldest); err != nil {
		return 0, 0, fmt.Errorf("read schema version: %w", err)
	}
	return version, oldest, nil
}
