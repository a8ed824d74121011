package plans

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/testenv"
)

// A program that starts with an empty database keeps its plans for as long as its connections last.
func TestPlansOnAnEmptyDatabaseGoByAnIndex(t *testing.T) {
	t.Parallel()
	used, empty := start(t), start(t)
	empty.sent = used.sent
	used.everything(t)
	used.wantAllSent(t)
	t.Run("empty", empty.wantGoodPlans)
	t.Run("after its first hour", used.wantGoodPlans)
}

// PLAN_ROWS is how many keys, payments and events there are. A small tenant must not pay for its large neighbour.
func TestPlansOnABigDatabaseGoByAnIndex(t *testing.T) {
	t.Parallel()
	rows := int64(20_000)
	if text := os.Getenv("PLAN_ROWS"); text != "" {
		var err error
		if rows, err = strconv.ParseInt(text, 10, 64); err != nil || rows < 1000 || rows > 100_000_000 {
			t.Fatalf("PLAN_ROWS is %q, must be 1000 to 100000000", text)
		}
	}
	s := start(t)
	s.publish(t) // then the relay is away while all this comes
	large := s.newCaller(t, "the large one")
	hot := large.fill(t, rows)
	s.publish(t)
	large.use(t, hot)
	small := s.newCaller(t, "the small one")
	small.use(t, uuid.Nil)
	small.get(t, "/api/v1/payments?account="+hot.String())
	s.consume(t)
	t.Run("never analysed", s.wantGoodPlans)
	if err := s.run(t.Context(), "ANALYZE"); err != nil {
		t.Fatal(err)
	}
	t.Run("analysed", s.wantGoodPlans)
}

// The rules can fail: each of these is what a plan rests on.
func TestAPlanThatLostItsIndexOrItsSettingIsSeen(t *testing.T) {
	t.Parallel()
	used, s := start(t), start(t)
	s.sent = used.sent
	used.everything(t)
	for _, lost := range []struct{ setting, value, fault string }{
		{"enable_seqscan", "on", "Seq Scan on outbox_events_"},
		{"enable_bitmapscan", "on", "Bitmap Heap Scan on outbox_events_"},
		{"enable_partition_pruning", "off", "of the days"},
	} {
		t.Run(lost.setting, func(t *testing.T) { wantFault(t, s.badPlans(t, lost.setting, lost.value), lost.fault) })
	}
	for _, lost := range []struct{ name, sql, fault string }{
		{"accounts_one_system", `DROP INDEX accounts_one_system`, "on accounts "},
		{"psp_operations_due", `DROP INDEX psp_operations_due`, "on psp_operations"},
		{"psp_operations_charge", `DROP INDEX psp_operations_charge`, "on psp_operations"},
		{"payments_source", `DROP INDEX payments_source`, "throws away the payments of other accounts"},
		{"the tenant first in payments_pkey", `ALTER TABLE payments DROP CONSTRAINT payments_pkey, ADD PRIMARY KEY (id)`, "by payments_pkey does not look up"},
		{"ledger_entries_pkey", `ALTER TABLE ledger_entries DROP CONSTRAINT ledger_entries_pkey`, "on ledger_entries does not look up"},
		{"idempotency_keys_pkey", `ALTER TABLE idempotency_keys DROP CONSTRAINT idempotency_keys_pkey`, "Seq Scan on idempotency_keys_"},
		{"outbox_events_id", `DROP INDEX outbox_events_id`, "is sorted whole"},
		{"outbox_events_xid", `DROP INDEX outbox_events_xid`, "Seq Scan on outbox_events_"},
	} {
		t.Run(lost.name, func(t *testing.T) {
			if err := s.run(t.Context(), lost.sql); err != nil {
				t.Fatal(err)
			}
			wantFault(t, s.badPlans(t, "jit", "off"), lost.fault) // compiling what has become dear takes seconds
		})
	}
}

func start(t *testing.T) *service {
	t.Helper()
	s := newService(t, testenv.Database(t))
	for _, sql := range []string{makeOldDays, stopAutovacuum} {
		if err := s.run(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// everything sends each statement that there is.
func (s *service) everything(t *testing.T) {
	t.Helper()
	s.newCaller(t, "the first").use(t, uuid.Nil)
	s.publish(t)
	s.consume(t)
}

func (s *service) wantGoodPlans(t *testing.T) {
	t.Helper()
	for _, bad := range s.badPlans(t, "", "") {
		t.Error(bad)
	}
}

func wantFault(t *testing.T, bad []string, fault string) {
	t.Helper()
	if !slices.ContainsFunc(bad, func(text string) bool { return strings.Contains(text, fault) }) {
		t.Errorf("no plan with the fault %q among\n%s", fault, strings.Join(bad, "\n"))
	}
}

// The days that have a partition and that a look-up must not leave out.
const liveDays = `
SELECT array_agg(right(relname, 8) ORDER BY relname) FROM pg_inherits JOIN pg_class ON oid = inhrelid
WHERE inhparent = 'idempotency_keys'::regclass AND relname ~ '_[0-9]{8}$' AND to_date(right(relname, 8), 'YYYYMMDD') >= (now() AT TIME ZONE 'utc')::date - $1::int`

// badPlans explains what was sent, on connections with the programs' settings and perhaps another one, and returns the plans that
// break a rule, each with what is wrong with it. The others are logged, one for each statement.
func (s *service) badPlans(t *testing.T, setting, value string) (bad []string) {
	t.Helper()
	var live []string // retention is three days
	if err := s.db.Pool(t, "").QueryRow(t.Context(), liveDays, 3).Scan(&live); err != nil {
		t.Fatal(err)
	}
	for role, recorder := range s.sent {
		pool := s.open(t, role, func(c *pgx.ConnConfig) {
			c.RuntimeParams["statement_timeout"] = "0" // what takes too long is shown with its plan
			if setting != "" {
				c.RuntimeParams[setting] = value
			}
		})
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		shown := map[string]bool{}
		for _, st := range recorder.all() {
			plan, err := explain(t.Context(), conn.Conn(), st)
			if err != nil {
				t.Fatalf("%s: %v", st.sql, err)
			}
			wrong := faults(plan, false)
			if plan.Compiled {
				wrong = append(wrong, "it is compiled")
			}
			if looked := days(plan); len(looked) > 0 && !slices.Equal(looked, live) {
				wrong = append(wrong, fmt.Sprintf("of the days %v are looked at, not %v", looked, live))
			}
			if len(wrong) > 0 {
				bad = append(bad, fmt.Sprintf("%s, %.1f ms: %s\n%s%s", role, plan.Took, st.sql, plan, strings.Join(wrong, "\n")))
			} else if !shown[st.sql] {
				shown[st.sql] = true
				t.Logf("%s, %.1f ms: %s\n%s", role, plan.Took, st.sql, plan)
			}
		}
	}
	return bad
}
