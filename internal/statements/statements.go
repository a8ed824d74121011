// Package statements keeps account statements: how many payments and refunds an account took part
// in on a UTC day, and what they debited and credited.
//
// It plays another team's service: it knows payments only by their events and owns its table.
// Money moves with two of them, payment.completed and refund.completed; a hold that is made,
// canceled or expired moves none, nor does what the PSP is still at work on. Counting and adding are not idempotent, so the table is right
// only if every event takes effect once; package inbox ensures that. They do not depend on order:
// a refund may be counted before its payment.
//
// Not promised: that a statement is complete at any given time. It is behind by the consumer's lag.
package statements

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/inbox"
)

// Consumer is the name under which the inbox remembers what this package has counted. Under
// another name everything is counted again.
const Consumer = "statements"

var (
	// ErrUnknownType means that an event's type is newer than this program. It may be about money,
	// so it is not skipped: deploy a newer program.
	ErrUnknownType = errors.New("unknown event type")

	// ErrMalformed means that an event is not what its type promises.
	ErrMalformed = errors.New("malformed event")
)

// Handle counts the completed payments and refunds among events. It is meant as the Handle of an
// inbox.Consumer, which passes it each event once.
func Handle(ctx context.Context, tx pgx.Tx, events []inbox.Event) error {
	var lines []line
	for _, e := range events {
		var t transfer
		var err error

		switch e.Type {
		case "payment.completed":
			t, err = readPayment(e)
		case "refund.completed":
			t, err = readRefund(e)
		case "payment.authorized", "payment.canceled", "payment.expired", "payment.declined",
			"payment.processing", "payment.failed",
			"refund.declined", "refund.processing", "refund.failed", "account.opened":
			continue // no money moved
		default:
			return fmt.Errorf("%w: %s", ErrUnknownType, e.Type)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrMalformed, err)
		}

		// The day of the event, not of its arrival: a redelivery or a backlog counts the same.
		day := t.at.UTC().Truncate(24 * time.Hour)
		lines = append(lines,
			line{t.from, day, t.currency, 1, t.amount, 0},
			line{t.to, day, t.currency, 1, 0, t.amount})
	}

	return add(ctx, tx, lines)
}

// line is what transfers add to the statement of an account on a day.
type line struct {
	account         uuid.UUID
	day             time.Time
	currency        string
	payments        int64
	debits, credits int64
}

// Locks rows in the order of the arrays, which are sorted: two consumers that meet on the same
// accounts do not deadlock. A sum beyond int64 is an error of the database (22003).
const addLines = `
INSERT INTO statements AS s (account_id, day, currency, payment_count, debits_minor, credits_minor)
SELECT account_id, day, currency, payment_count, debits_minor, credits_minor
FROM unnest($1::uuid[], $2::date[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[])
     WITH ORDINALITY t(account_id, day, currency, payment_count, debits_minor, credits_minor, i)
ORDER BY i
ON CONFLICT (account_id, day) DO UPDATE SET
  payment_count = s.payment_count + excluded.payment_count,
  debits_minor  = s.debits_minor + excluded.debits_minor,
  credits_minor = s.credits_minor + excluded.credits_minor
WHERE s.currency = excluded.currency`

// add writes lines, in any order, in one statement.
func add(ctx context.Context, tx pgx.Tx, lines []line) error {
	if len(lines) == 0 {
		return nil
	}
	lines = merge(lines)

	// One array per column, one row per line.
	n := len(lines)
	accounts, days, currencies := make([][16]byte, n), make([]time.Time, n), make([]string, n)
	payments, debits, credits := make([]int64, n), make([]int64, n), make([]int64, n)
	for i, l := range lines {
		accounts[i], days[i], currencies[i] = l.account, l.day, l.currency
		payments[i], debits[i], credits[i] = l.payments, l.debits, l.credits
	}

	tag, err := tx.Exec(ctx, addLines, accounts, days, currencies, payments, debits, credits)
	if err != nil {
		return fmt.Errorf("add to statements: %w", err)
	}

	// A row in another currency was left alone. Fail, or its payment would be lost.
	if tag.RowsAffected() != int64(n) {
		return fmt.Errorf("%w: an account has payments in two currencies", ErrMalformed)
	}

	return nil
}

// merge sorts lines and adds up those of one account, day and currency.
func merge(lines []line) []line {
	slices.SortFunc(lines, func(a, b line) int {
		return cmp.Or(
			bytes.Compare(a.account[:], b.account[:]),
			a.day.Compare(b.day),
			cmp.Compare(a.currency, b.currency))
	})

	// merged shares the array of lines: it never gets ahead of the line that is read.
	merged := lines[:1]
	for _, l := range lines[1:] {
		last := &merged[len(merged)-1]
		if l.account != last.account || !l.day.Equal(last.day) || l.currency != last.currency {
			merged = append(merged, l)
			continue
		}

		last.payments += l.payments
		last.debits += l.debits
		last.credits += l.credits
	}

	return merged
}
