package plans

import (
	"fmt"
	"slices"
	"strings"
)

// most is how many rows a statement may take from one big table: two accounts for each of 100 payments, or a page of 100 and one more
// from each of two sides. Of the outbox it is two of the relay's batches.
func most(table string) float64 {
	if strings.HasPrefix(table, "outbox_events") {
		return 2 * (relayBatch + 1)
	}
	return 2 * (100 + 1)
}

// pages is how many pages a scan may look at: the way down the index and the row's own page for each row and each look-up, and some
// to spare for what is dead or not on the page where it was expected. An array is as many look-ups as it has members: 100 keys at most.
func pages(n node) float64 {
	lookUps := n.Loops
	if strings.Contains(n.Cond, "= ANY") {
		lookUps *= 100
	}
	spare := 50.0
	if n.Index == "psp_operations_due" { // what has ended here is still in it: nothing vacuums
		spare = 500
	}
	return spare + 6*(n.read()+lookUps)
}

// big tables are those that grow with every payment, account or event.
func big(table string) bool {
	return slices.Contains([]string{"accounts", "payments", "refunds", "ledger_entries", "inbox_dead_letters", "inbox_sequences", "statements", "psp_operations"}, table) ||
		strings.HasPrefix(table, "inbox_events") || strings.HasPrefix(table, "idempotency_keys") || strings.HasPrefix(table, "outbox_events")
}

// one lists the indexes that find one row at most for what they are asked.
func one(index string) bool {
	return slices.Contains([]string{
		"accounts_pkey", "accounts_one_system", "accounts_one_clearing", "payments_pkey", "refunds_pkey", "psp_operations_pkey", "psp_operations_charge",
	}, index)
}

// stragglers says whether a scan looks for the relay's stragglers. They are as many as their transactions wrote, and sorted whole. It goes
// through the index entries of all that was written since the snapshot: few, but for the first read of a relay that was away.
func stragglers(n node) bool {
	return strings.HasPrefix(n.Relation, "outbox_events") && strings.Contains(n.Cond, "xid >=") && strings.Contains(n.Cond, "xid < ")
}

// faults tells what is wrong with a plan. sorted: what it returns is sorted without a limit.
func faults(n node, sorted bool) (all []string) {
	switch {
	case strings.HasSuffix(n.Type, "Sort"):
		sorted = true
	case n.Type == "Limit":
		sorted = false
	case strings.Contains(n.Type, "Scan") && big(n.Relation):
		where := fmt.Sprintf("%s on %s", n.Type, n.Relation)
		if n.Index != "" {
			where += " by " + n.Index
		}
		if !looksUp(n) {
			all = append(all, where+" does not look up its rows in an index")
		}
		if strings.Contains(n.Filter, "_account = ") {
			all = append(all, where+" throws away the payments of other accounts")
		}
		if sorted && !one(n.Index) && !stragglers(n) {
			all = append(all, where+" is sorted whole")
		}
		if n.read() > most(n.Relation) && !strings.Contains(n.Filter, "(status = 'completed'") { // see selectCompletedPayments
			all = append(all, fmt.Sprintf("%s reads %.0f rows, more than %.0f", where, n.read(), most(n.Relation)))
		}
		// Entries of holds that have ended are dead until a vacuum, and are visited once.
		// So are those of operations, which one claim in a second reads from the beginning, and who counts them.
		ended := strings.HasSuffix(n.Index, "_by_status") || n.Index == "psp_operations_due" && !strings.Contains(n.Cond, ">=")
		if n.Hit+n.Read > pages(n) && !stragglers(n) && !ended {
			all = append(all, fmt.Sprintf("%s looks at %.0f pages for %.0f rows", where, n.Hit+n.Read, n.read()))
		}
	}
	for _, p := range n.Plans {
		all = append(all, faults(p, sorted)...)
	}
	return all
}

// looksUp says whether a scan begins where its rows begin. With an equality: a range alone, such as that of a page's ids, may hold
// everybody's rows. The relay does want everybody's, but from a place onwards, of certain transactions, or of certain ids.
func looksUp(n node) bool {
	switch {
	case n.Type != "Index Scan" && n.Type != "Index Only Scan":
		return false
	case strings.HasPrefix(n.Relation, "outbox_events"):
		return strings.Contains(n.Cond, "xid ") || strings.Contains(n.Cond, "id > ") || n.Cond == "(id = t.id)" || theLast(n)
	case n.Index == "psp_operations_due": // everybody's, the longest due first
		return true
	case n.Index == "psp_operations_pkey" && n.Cond == "": // everybody's newest; how many is checked for all
		return true
	case n.Index == "payments_expiring": // everybody's, the oldest first: the sweep, and how far it is behind
		return true
	}
	return strings.Contains(n.Cond, " = ")
}

// theLast says whether a scan goes to the end of an index for max(id); Postgres 17 knows that an id is not null, and does not ask.
func theLast(n node) bool {
	return n.Cond == "(id IS NOT NULL)" || n.Cond == "" && n.Type == "Index Only Scan" && n.read() <= 1
}

// days returns the partitions of idempotency_keys that a plan looked at: their last eight digits. The others were never executed.
func days(n node) (all []string) {
	if day, ok := strings.CutPrefix(n.Relation, "idempotency_keys_"); ok && n.Type != "ModifyTable" && n.Loops > 0 {
		all = append(all, day)
	}
	for _, p := range n.Plans {
		all = append(all, days(p)...)
	}
	return all
}
