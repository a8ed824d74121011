package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/invariant"
)

// books is what there is of each thing that a payment leaves behind.
type books struct{ payments, keys, events, entries int64 }

const countBooks = `
SELECT (SELECT count(*) FROM payments), (SELECT count(*) FROM idempotency_keys), (SELECT count(*) FROM outbox_events), (SELECT count(*) FROM ledger_entries)`

func countAll(ctx context.Context, conn *pgx.Conn) (b books, err error) {
	if err := conn.QueryRow(ctx, countBooks).Scan(&b.payments, &b.keys, &b.events, &b.entries); err != nil {
		return b, fmt.Errorf("count the books: %w", err)
	}
	return b, nil
}

// checkBooks proves a rate: since before, there is one payment for each of the first answers, with its key, its event and two entries.
func checkBooks(ctx context.Context, conn *pgx.Conn, before books, first int) error {
	now, err := countAll(ctx, conn)
	if err != nil {
		return err
	}
	made := books{now.payments - before.payments, now.keys - before.keys, now.events - before.events, now.entries - before.entries}
	n := int64(first)
	if want := (books{n, n, n, 2 * n}); made != want {
		return fmt.Errorf("the books do not balance: %d first answers, but %d payments, %d keys, %d events and %d entries",
			n, made.payments, made.keys, made.events, made.entries)
	}
	return nil
}

// checkInvariants looks at the tables as the demo does, without topics: here is no relay.
func checkInvariants(ctx context.Context, owner string) error {
	db, err := pgxpool.New(ctx, owner)
	if err != nil {
		return errors.New("check the books: the driver cannot read the URL")
	}
	defer db.Close()
	// What was just written is not in the statistics, autovacuum is off, and a join by wrong numbers goes on for hours.
	if _, err := db.Exec(ctx, `ANALYZE`); err != nil {
		return fmt.Errorf("check the books: analyze: %w", err)
	}
	report, err := invariant.Check(ctx, invariant.Sources{DB: db})
	if err != nil {
		return err
	}
	var problems []error
	wrong := report.Wrong()
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		problems = append(problems, fmt.Errorf("the books do not balance: %d %s: %v", wrong[name], name, report.Line(name).Examples))
	}
	return errors.Join(problems...)
}
