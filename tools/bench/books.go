package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/tools/rig"
)

// What each leaves behind: payments, keys, events and ledger entries.
var (
	ofPayment = []int{1, 1, 1, 2}
	ofHold    = []int{1, 1, 1, 0}
	ofCapture = []int{0, 1, 1, 2}
	ofCard    = []int{1, 1, 2, 2} // that was charged
	ofPair    = []int{1, 2, 2, 2}
	ofRefund  = []int{0, 1, 1, 2}
	ofCancel  = []int{0, 1, 1, 0}
	ofExpiry  = []int{0, 0, 1, 0}
	ofRefusal = []int{0, 1, 0, 0}
)

// count adds what n of them have written.
func (s *session) count(each []int, n int) {
	for i := range each {
		s.wrote[i] += n * each[i]
	}
}

const selectBooks = `
SELECT ARRAY[(SELECT count(*) FROM payments), (SELECT count(*) FROM idempotency_keys),
  (SELECT count(*) FROM outbox_events), (SELECT count(*) FROM ledger_entries)]`

func countBooks(ctx context.Context, url string) ([]int, error) {
	return rig.Query[[]int](ctx, url, selectBooks)
}

// checkBooks proves a rate: since before, there are the rows that belong to the first answers, and
// the tables agree with each other, and with the PSP's books.
func checkBooks(ctx context.Context, url string, before, wrote []int, charged []invariant.PSPEntry) error {
	books, err := countBooks(ctx, url)
	if err != nil {
		return err
	}
	for i := range books {
		books[i] -= before[i]
	}

	var wrong error
	if !slices.Equal(books, wrote) {
		wrong = fmt.Errorf("the books do not balance: by the answers there are %v payments, keys, events "+
			"and entries, but there are %v", wrote, books)
	}

	db, err := pgxpool.New(ctx, url)
	if err != nil {
		return fmt.Errorf("check the books: %w", err)
	}
	defer db.Close()
	// What was just written may not be in the statistics, and a join planned by wrong numbers takes
	// hours.
	if _, err := db.Exec(ctx, `ANALYZE`); err != nil {
		return fmt.Errorf("check the books: %w", err)
	}

	// Without topics: there is no relay here.
	report, err := invariant.Check(ctx, invariant.Sources{DB: db, PSP: charged})
	for name, n := range report.Wrong() {
		wrong = errors.Join(wrong, fmt.Errorf("the books do not balance: %d %s: %v",
			n, name, report.Line(name).Examples))
	}
	return errors.Join(wrong, err)
}
