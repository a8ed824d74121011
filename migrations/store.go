package migrations

import (
	"context"
	"fmt"

	"github.com/pressly/goose/v3/database"
)

// store keeps, beside the version that goose notes, what the file was and which programs it serves. Both rows are
// written by the transaction that applies the file.
type store struct{ database.Store }

// versionTable is goose's own.
const versionTable = "goose_db_version"

func newStore() (database.Store, error) {
	s, err := database.NewStore(database.DialectPostgres, versionTable)
	return store{s}, err
}

const createFiles = `
CREATE TABLE schema_files (
    version        bigint      PRIMARY KEY,
    name           text        NOT NULL,
    sha256         text        COLLATE "C" NOT NULL,
    oldest_program bigint      NOT NULL,
    applied_at     timestamptz NOT NULL DEFAULT now()
)`

const commentFiles = `
COMMENT ON TABLE schema_files IS
    'The files that are applied: the hash of each, byte for byte, and the version of the oldest program '
    'that the schema serves with it. Programs read them when they start. Written by migrate up.'`

// CreateVersionTable creates both tables.
func (s store) CreateVersionTable(ctx context.Context, db database.DBTxConn) error {
	if err := s.Store.CreateVersionTable(ctx, db); err != nil {
		return err
	}
	for _, statement := range []string{createFiles, commentFiles} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("create schema_files: %w", err)
		}
	}
	return nil
}

// TableExists is optional for goose, so that embedding its store alone would lose it.
func (s store) TableExists(ctx context.Context, db database.DBTxConn) (exists bool, err error) {
	err = db.QueryRowContext(ctx, `SELECT to_regclass($1) IS NOT NULL`, versionTable).Scan(&exists)
	return exists, err
}

// Another tool that takes a file back leaves its row.
const insertFile = `
INSERT INTO schema_files (version, name, sha256, oldest_program) VALUES ($1, $2, $3, $4)
ON CONFLICT (version) DO UPDATE
SET name = excluded.name, sha256 = excluded.sha256, oldest_program = excluded.oldest_program, applied_at = now()`

// Insert notes that a file is applied; version 0 stands for the two tables.
func (s store) Insert(ctx context.Context, db database.DBTxConn, req database.InsertRequest) error {
	for _, f := range files() {
		if f.version != req.Version {
			continue
		}
		if _, err := db.ExecContext(ctx, insertFile, f.version, f.name, f.hash(), f.oldest()); err != nil {
			return fmt.Errorf("write schema_files: %w", err)
		}
	}

	// Crash point, for a file outside a transaction: goose does not know the file yet and applies it again.
	return s.Store.Insert(ctx, db, req)
}
