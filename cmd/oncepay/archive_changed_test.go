package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Between the comparison with the manifest and the deletion a file may change. What it says then is not
// what was compared, however well it reads.
func TestNothingIsDeletedByFilesThatChangedSince(t *testing.T) {
	t.Parallel()
	s, first, _, oldest := years(t)
	dir := t.TempDir()
	must(t, s.owner, "archive", first, "--to", dir)
	folder := s.day(t, dir)
	var hash []byte
	if err := s.db.Pool(t, "").QueryRow(t.Context(), `SELECT manifest FROM archived_days WHERE payments > 0`).Scan(&hash); err != nil {
		t.Fatal(err)
	}
	m, err := readManifest(folder, hash)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := m.verify(folder)
	if err != nil {
		t.Fatal(err)
	}

	must(t, s.env, "refund", oldest.String(), "--amount", "1", "--key", "refund-3")
	path := filepath.Join(folder, paymentsFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(lines []string) []string{
		"other rows": func(lines []string) []string { return append(lines[:1:1], strings.Replace(lines[1], "-7", "-6", 1)) },
		"fewer":      func(lines []string) []string { return lines[:2] },
		"more":       func(lines []string) []string { return append(lines[:len(lines):len(lines)], lines[1]) },
	} {
		if err := os.WriteFile(path, changed(t, text, change), 0o600); err != nil {
			t.Fatal(err)
		}
		var done archived
		if err := done.deleteDay(t.Context(), s.conn(t), folder, m, whole); !errors.Is(err, errChanged) {
			t.Errorf("%s: %v", name, err)
		}
		if n := s.count(t, `SELECT count(*) FROM payments`); n != 5 || done.DeletedPayments != 0 {
			t.Errorf("%s: %d payments are left, %+v", name, n, done)
		}
	}

	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var done archived
	mustJSON(t, &done, s.owner, "archive", first, "--to", dir, "--delete")
	if done.DeletedPayments != 3 || done.KeptPayments != 1 {
		t.Errorf("%+v", done)
	}
}

func changed(t *testing.T, packed []byte, change func([]string) []string) []byte {
	t.Helper()
	in, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(in)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	lines := change(strings.Split(strings.TrimSuffix(string(text), "\n"), "\n"))
	if _, err := z.Write([]byte(strings.Join(lines, "\n") + "\n")); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// The files have the payments of all tenants, and read the same whatever the database prefers.
func TestArchivedFilesArePrivateAndInOneFormat(t *testing.T) {
	t.Parallel()
	s, first, _, _ := years(t)
	s.exec(t, `DO $$ BEGIN
		EXECUTE format('ALTER DATABASE %I SET timezone = ''Asia/Tokyo''', current_database());
		EXECUTE format('ALTER DATABASE %I SET datestyle = ''German''', current_database());
		EXECUTE format('ALTER DATABASE %I SET intervalstyle = ''iso_8601''', current_database());
		EXECUTE format('ALTER DATABASE %I SET bytea_output = ''escape''', current_database());
	END $$`)
	dir := t.TempDir()
	must(t, s.owner, "archive", first, "--to", dir)

	folder := s.day(t, dir)
	at, err := os.Stat(folder)
	if err != nil || at.Mode().Perm() != 0o700 {
		t.Errorf("the folder is %v, %v", at.Mode(), err)
	}
	inside, err := os.ReadDir(folder)
	if err != nil || len(inside) != len(files)+1 {
		t.Errorf("%v, %v", inside, err)
	}
	for _, e := range inside {
		if at, err := e.Info(); err != nil || at.Mode().Perm() != 0o600 {
			t.Errorf("%s is %v, %v", e.Name(), at.Mode(), err)
		}
	}

	for _, name := range []string{paymentsFile, entriesFile, commandsFile} {
		_, err := readBack(filepath.Join(folder, name), func(row map[string]string) error {
			for column, value := range row {
				isTime := strings.HasSuffix(column, "_at") && value != ""
				if _, err := time.Parse("2006-01-02 15:04:05.999999-07", value); isTime && (err != nil || !strings.HasSuffix(value, "+00")) {
					t.Errorf("%s: %s is %q", name, column, value)
				}
				if column == "fingerprint" && !strings.HasPrefix(value, `\x`) {
					t.Errorf("%s: %s is %q", name, column, value)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}
