package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/testenv"
)

// move takes what was paid within the last hours to another time, as if it had been paid then. Its events have left the outbox.
const move = `
SET session_replication_role = replica; -- without the triggers
CREATE FUNCTION moved(id uuid, d interval) RETURNS uuid LANGUAGE sql AS $$
  SELECT CASE WHEN id < first_id(now() - interval '1 day') THEN id ELSE overlay(replace(id::text, '-', '') PLACING
    left(replace(first_id(to_timestamp(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint / 1000.0) - d)::text, '-', ''), 12)
    FROM 1 FOR 12)::uuid END $$;
UPDATE refunds SET payment_id = moved(payment_id, {d}), processed_at = processed_at - {d} WHERE processed_at > now() - interval '1 day';
UPDATE payment_commands SET payment_id = moved(payment_id, {d}), processed_at = processed_at - {d} WHERE processed_at > now() - interval '1 day';
UPDATE ledger_entries SET payment_id = moved(payment_id, {d}), created_at = created_at - {d} WHERE created_at > now() - interval '1 day';
UPDATE statements SET day = day - {days} WHERE day >= current_date - 1;
UPDATE payments SET id = moved(id, {d}), processed_at = processed_at - {d},
  authorization_expires_at = authorization_expires_at - {d}, authorization_ended_at = authorization_ended_at - {d}
  WHERE processed_at > now() - interval '1 day';
DELETE FROM outbox_events WHERE aggregate_type = 'payments';
DROP FUNCTION moved(uuid, interval);
SET session_replication_role = origin`

// moveTo moves what was paid just now to the day.
func (s *shop) moveTo(t *testing.T, day time.Time) {
	t.Helper()
	s.consume(t)
	days := time.Now().UTC().Truncate(24*time.Hour).Sub(day) / (24 * time.Hour)
	n := strconv.Itoa(int(days))
	s.exec(t, strings.NewReplacer("{d}", "interval '"+n+" days'", "{days}", n).Replace(move), pgx.QueryExecModeSimpleProtocol)
}

// wantBooks wants that worker and invariants find nothing wrong, and what clients see adds up.
func (s *shop) wantBooks(t *testing.T, when string) {
	t.Helper()
	db := s.db.Pool(t, "")
	wrong, _, err := payments.CheckAccounts(t.Context(), s.db.Pool(t, "worker"), uuid.Nil, 1000)
	if err != nil || len(wrong) > 0 {
		t.Errorf("%s: accounts %v are wrong, %v", when, wrong, err)
	}
	if sums, err := payments.Imbalances(t.Context(), db); err != nil || len(sums) > 0 {
		t.Errorf("%s: balances sum to %v, %v", when, sums, err)
	}
	report, err := invariant.Check(t.Context(), invariant.Sources{DB: db, PSP: []invariant.PSPEntry{}})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range report.Lines {
		// Keys are forgotten long before their payment leaves. These are kept, to repeat them.
		if line.Wrong != 0 && line.Name != invariant.AnswersMissing {
			t.Errorf("%s: %+v", when, line)
		}
	}
	for _, a := range s.Accounts {
		var st statement
		mustJSON(t, &st, s.owner, "statement", a.ID.String(), "--days", "366")
		if !st.Agrees {
			t.Errorf("%s: statement of %s: %+v", when, a.ID, st)
		}
	}
}

// years is a shop with payments of two old months and of today. oldest is a payment of the first month.
func years(t *testing.T) (s *shop, first, second string, oldest uuid.UUID) {
	t.Helper()
	s = newShop(t)
	now := time.Now().UTC()
	month := time.Date(now.Year(), now.Month()-14, 1, 0, 0, 0, 0, time.UTC)
	must(t, s.env, s.order("--amount", "2500", "--key", "order-1")...)
	must(t, s.env, s.order("--amount", "300", "--key", "order-2")...)
	s.moveTo(t, month.AddDate(0, 0, 14))
	if err := s.db.Pool(t, "").QueryRow(t.Context(), `SELECT id FROM payments WHERE idempotency_key = 'order-2'`).Scan(&oldest); err != nil {
		t.Fatal(err)
	}
	// Of a later month: another payment, and a refund of the old one.
	must(t, s.env, s.order("--amount", "700", "--key", "order-3")...)
	must(t, s.env, "refund", oldest.String(), "--amount", "100", "--key", "refund-2")
	s.moveTo(t, month.AddDate(0, 1, 3))
	return s, month.Format("2006-01"), month.AddDate(0, 1, 0).Format("2006-01"), oldest
}

func TestAMonthLeavesAndTheBooksStayRight(t *testing.T) {
	t.Parallel()
	s, first, second, oldest := years(t)
	must(t, s.env, s.order("--amount", "50", "--key", "order-4")...)
	s.consume(t)
	s.wantBooks(t, "before")
	dir := t.TempDir()

	var done archived
	mustJSON(t, &done, s.owner, "archive", first, "--to", dir, "--delete")
	if done.Payments != 4 || done.Entries != 8 || done.DeletedPayments != 4 || done.DeletedEntries != 8 || done.Days < 10 || done.DeletedDays != done.Days {
		t.Errorf("%+v", done) // two of seed, order-1 and order-2
	}
	s.wantBooks(t, "the first month has left")
	if left := s.count(t, `SELECT count(*) FROM payments`); left != 2 {
		t.Errorf("%d payments are left, want order-3 and order-4", left)
	}

	// Clients: the key is remembered, the payment is not there, and nothing moves.
	var again payments.Payment
	mustJSON(t, &again, s.env, s.order("--amount", "300", "--key", "order-2")...)
	if again.AmountMinor != 300 || s.count(t, `SELECT count(*) FROM payments`) != 2 {
		t.Errorf("the repeat of an archived payment: %+v", again)
	}
	for _, args := range [][]string{{"refund", oldest.String(), "--amount", "100", "--key", "late"}, {"get", oldest.String()}} {
		if _, stderr, code := oncepay(t, s.env, args...); code != exitRefused || !strings.Contains(stderr, "404") && !strings.Contains(stderr, "not-found") {
			t.Errorf("%v: exit %d, %s", args, code, stderr)
		}
	}
	if out := must(t, s.owner, "statement", s.Accounts[0].ID.String()); !strings.Contains(out, "entries before are in the archive") {
		t.Errorf("a statement does not say where it begins:\n%s", out)
	}

	// Again, it finds nothing to do. Then the next month.
	mustJSON(t, &done, s.owner, "archive", first, "--to", dir, "--delete")
	if done != (archived{}) {
		t.Errorf("again: %+v", done)
	}
	mustJSON(t, &done, s.owner, "archive", second, "--to", dir, "--delete")
	if done.Payments != 1 || done.Entries != 4 || done.DeletedEntries != 4 {
		t.Errorf("the second month: %+v", done)
	}
	s.wantBooks(t, "the second month has left")
	must(t, s.env, s.order("--amount", "60", "--key", "order-5")...)
	if wrong, _, err := payments.CheckAccounts(t.Context(), s.db.Pool(t, "worker"), uuid.Nil, 1000); err != nil || len(wrong) > 0 {
		t.Errorf("paid behind the opening: %v, %v", wrong, err)
	}
}

// The events of a late refund are in the outbox for a month, and its payment has left meanwhile.
func TestAPaymentIsArchivedSoonAfterItsRefund(t *testing.T) {
	t.Parallel()
	s, first, _, oldest := years(t)
	must(t, s.env, "refund", oldest.String(), "--amount", "1", "--key", "refund-3")
	s.consume(t)
	s.exec(t, `DELETE FROM outbox_events WHERE aggregate_type = 'payments' AND aggregate_version < 3`)
	s.wantBooks(t, "before")

	must(t, s.owner, "archive", first, "--to", t.TempDir(), "--delete")
	if n := s.count(t, `SELECT count(*) FROM payments WHERE id = $1`, oldest); n != 0 {
		t.Error("it has not left")
	}
	if n := s.count(t, `SELECT count(*) FROM outbox_events WHERE aggregate_id = $1::uuid::text`, oldest); n == 0 {
		t.Error("its event is not there")
	}
	s.wantBooks(t, "after")
}

func TestArchivingGoesOnWhereItWasKilled(t *testing.T) {
	t.Parallel()
	s, first, _, oldest := years(t)
	dir := t.TempDir()
	var done archived
	mustJSON(t, &done, s.owner, "archive", first, "--to", dir)
	if done.Payments != 4 || done.DeletedDays != 0 || s.count(t, `SELECT count(*) FROM payments`) != 5 {
		t.Errorf("without --delete: %+v", done)
	}
	wantAccounts(t, s, "copied, and nothing deleted")

	// Killed in the middle: half of the entries are gone, then one payment.
	s.exec(t, `DELETE FROM ledger_entries e USING ledger_openings o WHERE o.account_id = e.account_id AND e.entry_no <= o.entry_no AND e.amount_minor < 0`)
	wantAccounts(t, s, "half of it deleted")
	s.exec(t, `DELETE FROM payments WHERE idempotency_key = 'order-1'`)

	// In the meantime one is refunded.
	must(t, s.env, "refund", oldest.String(), "--amount", "1", "--key", "refund-3")
	mustJSON(t, &done, s.owner, "archive", first, "--to", dir, "--delete")
	if done.Days != 0 || done.KeptPayments != 1 || done.DeletedPayments != 2 || done.DeletedEntries != 4 {
		t.Errorf("the rest: %+v", done)
	}
	wantAccounts(t, s, "the rest is deleted")
	must(t, s.env, "refund", oldest.String(), "--amount", "1", "--key", "refund-4") // it is still there
}

func wantAccounts(t *testing.T, s *shop, when string) {
	t.Helper()
	wrong, _, err := payments.CheckAccounts(t.Context(), s.db.Pool(t, "worker"), uuid.Nil, 1000)
	if err != nil || len(wrong) > 0 {
		t.Errorf("%s: accounts %v are wrong, %v", when, wrong, err)
	}
}

func TestNothingIsDeletedThatTheArchiveDoesNotHold(t *testing.T) {
	t.Parallel()
	s, first, _, _ := years(t)
	dir := t.TempDir()
	must(t, s.owner, "archive", first, "--to", dir)

	refused := func(when, want string, args ...string) {
		t.Helper()
		_, stderr, code := oncepay(t, s.owner, args...)
		if code != exitFailed || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d, %s", when, code, stderr)
		}
		if n := s.count(t, `SELECT (SELECT count(*) FROM payments) * 100 + (SELECT count(*) FROM ledger_entries)`); n != 512 {
			t.Errorf("%s: %d payments and %d entries are left", when, n/100, n%100)
		}
	}
	archive := []string{"archive", first, "--to", dir, "--delete"}
	refused("another folder", "--to must be the folder", "archive", first, "--to", t.TempDir(), "--delete")

	day := s.day(t, dir)
	whole, err := os.ReadFile(filepath.Join(day, refundsFile)) // nothing wrong with it, but it is another one
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{paymentsFile, entriesFile, manifestFile} {
		path := filepath.Join(day, name)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		damaged := slices.Clone(text)
		damaged[len(damaged)/2] ^= 1
		for _, bad := range [][]byte{damaged, text[:len(text)-1], {}, whole} {
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			refused(name, "", archive...)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	must(t, s.owner, archive...)
}

// day returns the folder of the day that has payments.
func (s *shop) day(t *testing.T, dir string) string {
	t.Helper()
	var day time.Time
	if err := s.db.Pool(t, "").QueryRow(t.Context(), `SELECT day FROM archived_days WHERE payments > 0`).Scan(&day); err != nil {
		t.Fatal(err)
	}
	return dayFolder(dir, day)
}

func TestNoDayIsArchivedThatIsNotOver(t *testing.T) {
	t.Parallel()
	s, first, _, _ := years(t)
	dir := t.TempDir()
	refused := func(month, want string) {
		t.Helper()
		_, stderr, code := oncepay(t, s.owner, "archive", month, "--to", dir, "--delete")
		if code != exitFailed || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("exit %d, %s, want %q", code, stderr, want)
		}
		if n := s.count(t, `SELECT (SELECT count(*) FROM payments) * 100 + (SELECT count(*) FROM archived_days WHERE payments > 0)`); n != 500 {
			t.Errorf("%s: %d", want, n)
		}
	}
	refused(time.Now().UTC().Format("2006-01"), "the month must have been over for 31 days")

	damage := func(sql string) {
		t.Helper()
		s.exec(t, `ALTER TABLE ledger_entries DISABLE TRIGGER USER`)
		s.exec(t, sql)
		s.exec(t, `ALTER TABLE ledger_entries ENABLE TRIGGER USER`)
	}
	damage(`UPDATE payments SET status = 'authorized', authorization_expires_at = now() WHERE idempotency_key = 'order-1'`)
	refused(first, "has not ended")
	s.exec(t, `INSERT INTO tenant_moves (tenant_id, target) SELECT id, 'elsewhere' FROM tenants`)
	refused(first, "has not ended") // it may stay
	s.exec(t, `DELETE FROM tenant_moves`)
	damage(`UPDATE payments SET status = 'completed', authorization_expires_at = NULL WHERE idempotency_key = 'order-1'`)

	damage(`UPDATE ledger_entries SET amount_minor = amount_minor + 1 WHERE entry_no = 1 AND amount_minor > 0`)
	refused(first, "do not add up")
	damage(`UPDATE ledger_entries SET amount_minor = amount_minor - 1 WHERE entry_no = 1 AND amount_minor > 0`)
	damage(`UPDATE ledger_entries SET entry_no = 1000 WHERE entry_no = 1 AND amount_minor > 0`)
	refused(first, "do not add up")
	damage(`UPDATE ledger_entries SET entry_no = 1 WHERE entry_no = 1000`)
	must(t, s.owner, "archive", first, "--to", dir, "--delete")
}

// What a tenant that has left still held ends in its next cluster. Here it stays, and blocks no day.
func TestAHoldOfATenantThatLeftBlocksNoDay(t *testing.T) {
	t.Parallel()
	s, first, _, _ := years(t)
	s.exec(t, `INSERT INTO tenant_moves (tenant_id, state, target) SELECT id, 'left', 'elsewhere' FROM tenants`)
	s.exec(t, `ALTER TABLE ledger_entries DISABLE TRIGGER USER`)
	s.exec(t, `UPDATE payments SET status = 'authorized', authorization_expires_at = now() WHERE idempotency_key = 'order-1'`)
	s.exec(t, `ALTER TABLE ledger_entries ENABLE TRIGGER USER`)
	before := s.count(t, `SELECT count(*) FROM payments`)

	var done archived
	mustJSON(t, &done, s.owner, "archive", first, "--to", t.TempDir(), "--delete")
	held := s.count(t, `SELECT count(*) FROM payments WHERE idempotency_key = 'order-1'`)
	if left := s.count(t, `SELECT count(*) FROM payments`); held != 1 || done.DeletedPayments == 0 || left != before-int(done.DeletedPayments) {
		t.Errorf("%+v, %d of %d payments are left, held: %d", done, left, before, held)
	}
}

// An entry of the old day that is numbered behind one of the new day waits for the next run.
func TestEntriesOutOfOrderAroundMidnightLeaveLater(t *testing.T) {
	t.Parallel()
	s, first, second, _ := years(t)
	month, _ := parseMonth(second)
	s.exec(t, `ALTER TABLE ledger_entries DISABLE TRIGGER USER`)
	// The last entry of the first month, and the first of the second, around midnight and the wrong way round.
	s.exec(t, `WITH edge AS (SELECT account_id, max(entry_no) FILTER (WHERE created_at < $1) AS last FROM ledger_entries GROUP BY 1)
		UPDATE ledger_entries e SET created_at = $1 + CASE WHEN entry_no = last THEN interval '1 ms' ELSE interval '-1 ms' END
		FROM edge WHERE edge.account_id = e.account_id AND e.entry_no IN (last, last + 1)`, month)
	s.exec(t, `ALTER TABLE ledger_entries ENABLE TRIGGER USER`)
	before := s.count(t, `SELECT count(*) FROM ledger_entries`)

	var done archived
	mustJSON(t, &done, s.owner, "archive", first, "--to", t.TempDir(), "--delete")
	wantAccounts(t, s, "around midnight")
	if left := s.count(t, `SELECT count(*) FROM ledger_entries WHERE created_at < $1`, month); left == 0 || int(done.DeletedEntries)+s.count(t, `SELECT count(*) FROM ledger_entries`) != before {
		t.Errorf("%d are left of the old month; %+v of %d", left, done, before)
	}
	mustJSON(t, &done, s.owner, "archive", second, "--to", t.TempDir(), "--delete")
	wantAccounts(t, s, "a month later")
	if left := s.count(t, `SELECT count(*) FROM ledger_entries`); left != 0 {
		t.Errorf("%d entries are left", left)
	}
}

// A day may take longer than a role or a database allows. transaction_timeout is looked at where there is one, since Postgres 17.
func TestNoLimitEndsAnArchive(t *testing.T) {
	t.Parallel()
	const limits = `name IN ('statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout')`
	ctx := t.Context()
	db, err := pgx.Connect(ctx, testenv.Database(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(context.Background())
	if _, err := db.Exec(ctx, `SELECT set_config(name, '1h', false) FROM pg_settings WHERE `+limits); err != nil {
		t.Fatal(err)
	}

	tx, err := db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := begin(ctx, tx, time.Now(), strings.NewReplacer("{from}", literal(time.Now()), "{until}", literal(time.Now()))); err != nil {
		t.Fatal(err)
	}
	rows, _ := tx.Query(ctx, `SELECT name FROM pg_settings WHERE setting <> '0' AND `+limits)
	if left, err := pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(left) > 0 {
		t.Errorf("it has %v, %v", left, err)
	}
}
