package plans

import (
	"testing"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/payments"
)

// TestBooksGoByTheirIndexes: the worker compares a hundred accounts with ten entries each, however many entries they have.
func TestBooksGoByTheirIndexes(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.newCaller(t, "the large one").fill(t, 20_000)
	const counted = `UPDATE accounts a SET entry_count = (SELECT count(*) FROM ledger_entries WHERE account_id = a.id)`
	if err := s.run(t.Context(), counted); err != nil {
		t.Fatal(err)
	}

	sent := newRecorder()
	pool := s.open(t, "worker", sent.trace)
	if _, _, err := payments.CheckAccounts(t.Context(), pool, uuid.Nil, 100); err != nil {
		t.Fatal(err)
	}
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	all := sent.all()
	plan, err := explain(t.Context(), conn.Conn(), all[len(all)-1])
	if err != nil {
		t.Fatal(err)
	}
	read := map[string]float64{}
	var scans func(node)
	scans = func(n node) {
		if n.Relation != "" {
			read[n.Type+" by "+n.Index] += n.read()
		}
		for _, p := range n.Plans {
			scans(p)
		}
	}
	scans(plan)
	t.Logf("%.1f ms\n%s", plan.Took, plan)
	if accounts, entries := read["Index Scan by accounts_pkey"], read["Index Scan by ledger_entries_pkey"]; len(read) != 3 || read["Index Scan by ledger_openings_pkey"] > 100 || accounts > 101 || entries == 0 || entries > 1000 {
		t.Errorf("%v\n%s", read, plan)
	}
}
