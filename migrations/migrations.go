// Package migrations holds the schema: one goose file per package, which a copier of the package takes along, and the
// roles that tie them together.
//
// Until the first tag the files are edited in place; after it, only new files are added, and each must be safe in three
// states: not applied, applied with the old programs running, applied with the new ones.
package migrations

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // goose speaks database/sql
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// FS holds the SQL files, at its root.
//
//go:embed *.sql
var FS embed.FS

// Migration is one file of the schema.
type Migration struct {
	Version int64
	Name    string
	Applied time.Time // zero: not yet
}

// Up applies what is missing to the database at url, one file after the other, each in a transaction, and returns
// what it applied. Any number of callers may run at once: a lock in the database lets one of them work.
func Up(ctx context.Context, url string) ([]Migration, error) {
	var done []Migration
	err := withProvider(url, func(p *goose.Provider) error {
		results, err := p.Up(ctx)
		if partial := (*goose.PartialError)(nil); errors.As(err, &partial) {
			results = partial.Applied // files before the one that failed stay
		}
		for _, r := range results {
			done = append(done, Migration{Version: r.Source.Version, Name: path.Base(r.Source.Path), Applied: time.Now()})
		}
		return err
	})
	return done, err
}

// Status lists every file of the schema and when it was applied to the database at url.
func Status(ctx context.Context, url string) ([]Migration, error) {
	var all []Migration
	err := withProvider(url, func(p *goose.Provider) error {
		statuses, err := p.Status(ctx)
		for _, s := range statuses {
			all = append(all, Migration{Version: s.Source.Version, Name: path.Base(s.Source.Path), Applied: s.AppliedAt})
		}
		return err
	})
	return all, err
}

func withProvider(url string, do func(*goose.Provider) error) error {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer db.Close()
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return fmt.Errorf("make migration lock: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, FS, goose.WithSessionLocker(locker))
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	return do(provider)
}

// Querier is the part of a pgx pool or connection that Check needs.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// ErrOutOfStep says that the schema of the database and the program do not belong together. Its text names what to do.
var ErrOutOfStep = errors.New("schema out of step")

const versioned = `
SELECT to_regclass('goose_db_version') IS NOT NULL`

// goose keeps the rows of what was rolled back, marked: the version is the highest whose last mark is "applied".
const appliedVersion = `
SELECT coalesce(max(v.version_id), 0)
FROM (SELECT DISTINCT ON (version_id) version_id, is_applied FROM goose_db_version ORDER BY version_id, id DESC) v
WHERE v.is_applied`

// Absent: the schema serves no program but its own.
const compatible = `
SELECT coalesce((SELECT oldest_program FROM schema_compatibility), $1)`

// Check returns ErrOutOfStep when the schema is older than this program, or newer and no longer serves it. A migration
// says in schema_compatibility which programs it serves: one that restarts in the middle of a deploy comes up.
func Check(ctx context.Context, db Querier) error {
	var exists bool
	if err := db.QueryRow(ctx, versioned).Scan(&exists); err != nil {
		return fmt.Errorf("read schema version: %w", err)
	}
	var have int64
	if exists {
		if err := db.QueryRow(ctx, appliedVersion).Scan(&have); err != nil {
			return fmt.Errorf("read schema version: %w", err)
		}
	}

	want := Version()
	switch {
	case have < want:
		return fmt.Errorf("%w: the database is at version %d, this program needs %d: run `migrate up`", ErrOutOfStep, have, want)
	case have == want:
		return nil
	}

	var oldest int64
	if err := db.QueryRow(ctx, compatible, have).Scan(&oldest); err != nil {
		return fmt.Errorf("read which programs the schema serves: %w", err)
	}
	if want < oldest {
		return fmt.Errorf("%w: the database is at version %d and serves programs from %d on, this one knows only %d: deploy a newer program",
			ErrOutOfStep, have, oldest, want)
	}
	return nil
}

// Version returns the version of the last file.
func Version() int64 {
	var last int64
	for _, name := range names() {
		n, _ := strconv.ParseInt(name[:strings.IndexByte(name, '_')], 10, 64)
		last = max(last, n)
	}
	return last
}

// Hash identifies the content of all files together: a template database made from them carries it in its name.
func Hash() string {
	h := sha256.New()
	for _, name := range names() {
		b, _ := FS.ReadFile(name) // embedded: cannot fail
		fmt.Fprintf(h, "%s %d\n", name, len(b))
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))[:12]
}

func names() []string {
	list, _ := fs.Glob(FS, "*.sql") // sorted; the pattern is well-formed
	return list
}
