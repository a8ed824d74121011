package migrations_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/migrations"
)

func TestUpRefusesAChangedFile(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	owner := db.Pool(t, "")
	down(t, db.URL, 10)
	exec(t, owner, `UPDATE schema_files SET sha256 = 'another' WHERE version = 3`)

	applied, err := migrations.Up(t.Context(), db.URL)
	if !errors.Is(err, migrations.ErrOutOfStep) || !strings.Contains(err.Error(), "00003_outbox.sql was changed") || len(applied) != 0 {
		t.Errorf("applied %v: %v", applied, err)
	}
}

func TestUpRefusesAFileThatAnotherToolApplied(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	owner := db.Pool(t, "")
	exec(t, owner, `DELETE FROM schema_files WHERE version = 12`)
	if _, err := migrations.Up(t.Context(), db.URL); !errors.Is(err, migrations.ErrOutOfStep) || !strings.Contains(err.Error(), "00012_") {
		t.Errorf("a file without its row: %v", err)
	}

	exec(t, owner, `DROP TABLE schema_files`)
	if _, err := migrations.Up(t.Context(), db.URL); !errors.Is(err, migrations.ErrOutOfStep) || !strings.Contains(err.Error(), "another tool") {
		t.Errorf("no table: %v", err)
	}
}

func TestUpRefusesToFillAGap(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	exec(t, db.Pool(t, ""), `DELETE FROM goose_db_version WHERE version_id = 11`)
	_, err := migrations.Up(t.Context(), db.URL)
	if !errors.Is(err, migrations.ErrOutOfStep) || !strings.Contains(err.Error(), "00012_webhooks.sql is applied, 00011_") {
		t.Error(err)
	}
}

// A file that does not say serves no older program, which is safe and rarely meant.
func TestEveryFileSaysWhichProgramsItServes(t *testing.T) {
	t.Parallel()
	names, err := migrations.FS.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range names {
		text, err := migrations.FS.ReadFile(entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		// Programs before version 8 start on their own version only.
		if says := regexp.MustCompile(`(?m)^-- oldest program: \d+$`).Match(text); !says && entry.Name() > "00008" {
			t.Errorf("%s lacks `-- oldest program: N`", entry.Name())
		}
	}
}
