package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// While one run is at work, another one and a tenant's move are told so, and touch nothing.
func TestOneArchiveRunsAtATime(t *testing.T) {
	t.Parallel()
	s, first, _, _ := years(t)
	dir := t.TempDir()
	other := s.conn(t)
	if _, err := other.Exec(t.Context(), lockArchive); err != nil { // between two days, or deleting
		t.Fatal(err)
	}

	_, stderr, code := oncepay(t, s.owner, "archive", first, "--to", dir, "--delete")
	if code != exitFailed || !strings.Contains(stderr, "another oncepay archive") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit %d, %s", code, stderr)
	}
	if there, err := os.ReadDir(dir); err != nil || len(there) > 0 {
		t.Errorf("%v are written, %v", there, err)
	}

	if err := other.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.wantUnlocked(t)
	must(t, s.owner, "archive", first, "--to", dir, "--delete")
	s.wantUnlocked(t)
}

// The lock is held while rows are deleted, too: between two days nobody else begins.
func TestTheArchiveIsLockedWhileItDeletes(t *testing.T) {
	t.Parallel()
	s, first, _, _ := years(t)
	tx, err := s.conn(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM payments FOR UPDATE`); err != nil {
		t.Fatal(err)
	}

	ended := make(chan string, 1)
	dir := t.TempDir()
	go func() {
		_, stderr, _ := oncepay(t, s.owner, "archive", first, "--to", dir, "--delete")
		ended <- stderr
	}()
	waiting := func() bool {
		return s.count(t, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%DELETE FROM payments%'`) > 0
	}
	for !waiting() {
		select {
		case stderr := <-ended:
			t.Fatalf("it did not wait for the row: %s", stderr)
		case <-time.After(10 * time.Millisecond):
		}
	}
	if n := s.count(t, `SELECT count(*) FROM archived_days WHERE payments > 0`); n != 1 {
		t.Errorf("%d days with payments are archived", n)
	}
	if s.count(t, `SELECT pg_try_advisory_xact_lock(hashtext('oncepay archive'))::int`) != 0 {
		t.Error("another run could begin")
	}

	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if stderr := <-ended; stderr != "" {
		t.Error(stderr)
	}
}

// The files of an archived day are all that is left of it.
func TestAnArchivedDayIsNotWrittenAgain(t *testing.T) {
	t.Parallel()
	s, first, _, _ := years(t)
	dir := t.TempDir()
	must(t, s.owner, "archive", first, "--to", dir)
	folder := s.day(t, dir)
	before := contents(t, folder)

	day, err := time.Parse(time.DateOnly, filepath.Base(folder))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := archiveDay(t.Context(), s.conn(t), dir, day); err == nil || !strings.Contains(err.Error(), "in the archive already") {
		t.Errorf("it was archived again: %v", err)
	}
	after := contents(t, folder)
	if len(before) != len(files)+1 || len(after) != len(before) {
		t.Fatalf("%d files, then %d", len(before), len(after))
	}
	for name, text := range before {
		if after[name] != text {
			t.Errorf("%s was written again", name)
		}
	}
	must(t, s.owner, "archive", first, "--to", dir, "--delete")
}

// Two clusters, one folder: what the first deleted is only there.
func TestAnArchiveOfAnotherDatabaseIsNotOverwritten(t *testing.T) {
	t.Parallel()
	s, first, _, _ := years(t)
	other, _, _, _ := years(t)
	dir := t.TempDir()
	must(t, s.owner, "archive", first, "--to", dir, "--delete")
	folder := s.day(t, dir)
	before := contents(t, folder)

	_, stderr, code := oncepay(t, other.owner, "archive", first, "--to", dir)
	if code == 0 || !strings.Contains(stderr, "give each a folder of its own") {
		t.Errorf("exit %d, %s", code, stderr)
	}
	if diff := cmp.Diff(before, contents(t, folder)); diff != "" {
		t.Errorf("(-of the first +now):\n%s", diff)
	}
}

// Against the rules, two clusters archive to one folder at the same time. The slower one had looked when
// nothing was there yet.
func TestTwoDatabasesArchiveToOneFolder(t *testing.T) {
	t.Parallel()
	s, first, _, _ := years(t)
	other, _, _, _ := years(t)
	tx, err := other.conn(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `LOCK TABLE refunds`); err != nil { // the second file waits
		t.Fatal(err)
	}

	dir := t.TempDir()
	ended := make(chan string, 1)
	go func() {
		_, stderr, _ := oncepay(t, other.owner, "archive", first, "--to", dir)
		ended <- stderr
	}()
	watch := other.conn(t)
	for waits := false; !waits; {
		select {
		case stderr := <-ended:
			t.Fatalf("it did not wait for the table: %s", stderr)
		case <-time.After(10 * time.Millisecond):
		}
		if err := watch.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waits); err != nil {
			t.Fatal(err)
		}
	}

	must(t, s.owner, "archive", first, "--to", dir, "--delete")
	folder := s.day(t, dir)
	before := contents(t, folder)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if stderr := <-ended; !strings.Contains(stderr, "another database may archive to the same folder") {
		t.Errorf("the second: %s", stderr)
	}
	if diff := cmp.Diff(before, contents(t, folder)); diff != "" {
		t.Errorf("(-of the first +now):\n%s", diff)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*.part-*")); err != nil || len(left) > 0 {
		t.Errorf("%q is left, %v", left, err)
	}
	if n := other.count(t, `SELECT count(*) FROM archived_days WHERE payments > 0`); n > 0 {
		t.Errorf("%d days of the second are archived", n)
	}
}

// A run was killed before its commit, or the database went back behind it: what it had written stays.
func TestADayThatTheDatabaseDoesNotKnowIsPutAside(t *testing.T) {
	t.Parallel()
	s, first, _, _ := years(t)
	dir := t.TempDir()
	must(t, s.owner, "archive", first, "--to", dir)
	folder := s.day(t, dir)
	before := contents(t, folder)

	s.exec(t, `DELETE FROM archived_days`)
	s.exec(t, `DELETE FROM ledger_openings`)
	must(t, s.owner, "archive", first, "--to", dir, "--delete")
	aside, err := filepath.Glob(folder + ".before-*")
	if err != nil || len(aside) != 1 {
		t.Fatalf("%q, %v", aside, err)
	}
	if diff := cmp.Diff(before, contents(t, aside[0])); diff != "" {
		t.Errorf("(-written first +put aside):\n%s", diff)
	}
	s.wantBooks(t, "archived twice")
}

func contents(t *testing.T, folder string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = string(text)
	}
	return all
}

// conn is a connection of its own.
func (s *shop) conn(t *testing.T) *pgx.Conn {
	t.Helper()
	pooled, err := s.db.Pool(t, "").Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	conn := pooled.Hijack()
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// wantUnlocked waits until the server has noticed that a connection is closed.
func (s *shop) wantUnlocked(t *testing.T) {
	t.Helper()
	for s.count(t, `SELECT pg_try_advisory_xact_lock(hashtext('oncepay archive'))::int`) == 0 {
		if t.Context().Err() != nil {
			t.Fatal("the archive stays locked")
		}
	}
}
