package main

import (
	"os"
	"regexp"
	"testing"

	"github.com/jackc/pgx/v5"
)

// The folder is gone and nothing was deleted: docs/operating.md forgets the days, and they are archived
// again. Once the deletion has begun, what is left is not all of a day.
func TestALostArchiveIsMadeAgain(t *testing.T) {
	t.Parallel()
	s, first, second, _ := years(t)
	must(t, s.owner, "archive", first, "--to", t.TempDir(), "--delete")
	lost, dir := t.TempDir(), t.TempDir()
	must(t, s.owner, "archive", second, "--to", lost)
	if err := os.RemoveAll(lost); err != nil {
		t.Fatal(err)
	}
	const openings = `SELECT sum(entry_no * 1000000 + balance_minor)::bigint FROM ledger_openings`
	later := s.count(t, openings)

	// The deletion has begun: nothing is forgotten.
	s.exec(t, `ALTER TABLE ledger_entries DISABLE TRIGGER USER;
		CREATE TABLE away AS SELECT * FROM ledger_entries ORDER BY account_id, entry_no LIMIT 1;
		DELETE FROM ledger_entries e USING away a WHERE e.account_id = a.account_id AND e.entry_no = a.entry_no;
		ALTER TABLE ledger_entries ENABLE TRIGGER USER`, pgx.QueryExecModeSimpleProtocol)
	if n := s.count(t, forgetDays(t)); n != 0 || s.count(t, openings) != later {
		t.Errorf("%d days are forgotten of which entries are gone", n)
	}
	s.exec(t, `INSERT INTO ledger_entries SELECT * FROM away`)
	s.exec(t, `CREATE TABLE gone AS SELECT p.* FROM payments p JOIN archived_days ON day = (processed_at AT TIME ZONE 'utc')::date
		WHERE deleted_at IS NULL; DELETE FROM payments p USING gone g WHERE p.id = g.id`, pgx.QueryExecModeSimpleProtocol)
	if n := s.count(t, forgetDays(t)); n != 0 || s.count(t, openings) != later {
		t.Errorf("%d days are forgotten of which payments are gone", n)
	}
	s.exec(t, `INSERT INTO payments SELECT * FROM gone`)

	// Another run is at work: nothing is forgotten.
	other := s.conn(t)
	if _, err := other.Exec(t.Context(), lockArchive); err != nil {
		t.Fatal(err)
	}
	if n := s.count(t, forgetDays(t)); n != 0 || s.count(t, openings) != later {
		t.Errorf("%d days are forgotten under a run", n)
	}
	if _, err := other.Exec(t.Context(), unlockArchive); err != nil {
		t.Fatal(err)
	}

	days := s.count(t, `SELECT count(*) FROM archived_days WHERE deleted_at IS NULL`)
	if n := s.count(t, forgetDays(t)); n != days || s.count(t, openings) == later {
		t.Errorf("%d of %d days are forgotten", n, days)
	}
	wantAccounts(t, s, "forgotten")
	if n := s.count(t, forgetDays(t)); n != 0 {
		t.Errorf("%d days are forgotten again", n)
	}

	var done archived
	mustJSON(t, &done, s.owner, "archive", second, "--to", dir, "--delete")
	if done.Days != days || done.Payments != 1 || done.Entries != 4 || done.DeletedEntries != 4 || s.count(t, openings) != later {
		t.Errorf("archived again: %+v", done)
	}
	s.wantBooks(t, "archived again")

	// Without an older day the accounts have no opening any more.
	s, first, _, _ = years(t)
	must(t, s.owner, "archive", first, "--to", t.TempDir())
	if n := s.count(t, forgetDays(t)); n == 0 || s.count(t, `SELECT count(*) FROM ledger_openings`) != 0 {
		t.Errorf("%d days are forgotten", n)
	}
	s.wantBooks(t, "nothing was ever archived")
}

// forgetDays is the statement of the runbook, for its first column.
func forgetDays(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	sql := regexp.MustCompile(`(?s)    (WITH alone AS .*?)\n    SELECT count\(\*\), min\(day\), max\(day\) FROM forgotten;`).FindSubmatch(page)
	if sql == nil {
		t.Fatal("docs/operating.md does not say how days are forgotten")
	}
	return string(sql[1]) + " SELECT count(*) FROM forgotten"
}
