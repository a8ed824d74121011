package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/psp"
)

// comparison reads both sides in pages, so that books of any length fit. It remembers 16 bytes of
// each operation that the PSP has executed.
type comparison struct {
	db *pgxpool.Pool
	window
	list     list
	progress io.Writer
	said     time.Time

	executed map[uuid.UUID]string // the PSP's reference
	found    reconciliation
}

func (c *comparison) compare(ctx context.Context) error {
	c.executed = map[uuid.UUID]string{}
	c.found.Differences = []difference{} // not null in JSON

	// What succeeded before this moment was in the PSP's books before we began to read them. What
	// succeeds later is read with them, or next time.
	var began time.Time
	if err := c.db.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&began); err != nil {
		return fmt.Errorf("read the time: %w", err)
	}

	for _, kind := range []payments.OperationKind{payments.Charge, payments.RefundCharge} {
		if err := c.compareTheirs(ctx, kind); err != nil {
			return err
		}
	}
	return c.compareOurs(ctx, began)
}

// compareTheirs looks for each entry of the PSP in our books.
func (c *comparison) compareTheirs(ctx context.Context, kind payments.OperationKind) error {
	count := &c.found.Charges
	if kind == payments.RefundCharge {
		count = &c.found.Refunds
	}

	for after, more := "", true; more; {
		var entries []psp.Entry
		var err error
		if entries, more, err = c.list(ctx, kind, after); err != nil {
			return err
		}
		if len(entries) > 0 {
			after = entries[len(entries)-1].Reference
		}

		// After the page: the operation of a call was committed before the call.
		ours, err := c.lookUp(ctx, entries)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if c.compareEntry(kind, e, ours) {
				*count++
			}
		}
		c.say("%d charges and %d refunds of the PSP compared", c.found.Charges, c.found.Refunds)
	}
	return nil
}

// ours is an operation as far as it is compared.
type ours struct {
	ID              uuid.UUID
	Kind            payments.OperationKind
	PaymentID       uuid.UUID
	AmountMinor     int64
	Currency        string
	State           payments.OperationState
	Reference       string
	ChargeReference string
	CreatedAt       time.Time
	Young           bool
}

const lookUpOperations = `
SELECT o.id, o.kind, o.payment_id, o.amount_minor, o.currency, o.state, o.reference,
  CASE o.kind WHEN 'refund' THEN coalesce(charge.reference, '') ELSE '' END, o.created_at,
  o.created_at > clock_timestamp() - $2::interval
FROM unnest($1::uuid[]) asked(id)
JOIN psp_operations o ON o.id = asked.id
LEFT JOIN psp_operations charge ON charge.payment_id = o.payment_id AND charge.kind = 'charge'`

func (c *comparison) lookUp(ctx context.Context, entries []psp.Entry) (map[uuid.UUID]ours, error) {
	var ids [][16]byte
	for _, e := range entries {
		if id, err := uuid.Parse(e.OperationID); err == nil {
			ids = append(ids, id)
		}
	}

	rows, _ := c.db.Query(ctx, lookUpOperations, ids, c.inFlight) // CollectRows returns its error
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ours])
	if err != nil {
		return nil, fmt.Errorf("look up operations: %w", err)
	}

	found := make(map[uuid.UUID]ours, len(all))
	for _, o := range all {
		found[o.ID] = o
	}
	return found, nil
}

// compareEntry reports whether the entry is within the window.
func (c *comparison) compareEntry(
	kind payments.OperationKind, e psp.Entry, operations map[uuid.UUID]ours,
) bool {
	id, _ := uuid.Parse(e.OperationID) // what is not an id is not ours
	o, known := operations[id]
	known = known && o.Kind == kind
	if known && (o.CreatedAt.Before(c.from) || !o.CreatedAt.Before(c.to)) {
		return false
	}
	if e.Declined { // it moved nothing, and an operation may not have heard of it yet
		return true
	}

	theirs := money(e.AmountMinor, e.Currency)
	d := difference{Kind: kind, OperationID: e.OperationID, Reference: e.Reference, PSPs: theirs}
	if !known {
		d.What = notOurs
		c.differs(d)
		return true
	}
	d.PaymentID, d.Ours = o.PaymentID.String(), string(o.State)+" "+money(o.AmountMinor, o.Currency)

	first, twice := c.executed[id]
	c.executed[id] = e.Reference
	switch {
	case twice:
		d.What, d.Ours = chargedTwice, "also "+first
	case o.State.Ended() && o.State != payments.Succeeded:
		d.What = endedOtherway
	case !o.State.Ended() && o.Young:
		c.found.InFlight++
		return true
	case !o.State.Ended():
		d.What = notRecorded
	case o.AmountMinor != e.AmountMinor || o.Currency != e.Currency:
		d.What = otherAmount
	case o.Reference != e.Reference:
		d.What, d.Ours = notOurs, "recorded as "+o.Reference
	case kind == payments.RefundCharge && o.ChargeReference != e.ChargeReference:
		d.What, d.Ours, d.PSPs = otherAmount, "of "+o.ChargeReference, "of "+e.ChargeReference
	default:
		return true
	}
	c.differs(d)
	return true
}

func (c *comparison) differs(d difference) { c.found.Differences = append(c.found.Differences, d) }

// The ids grow with the time, and this goes along them.
const listSucceeded = `
SELECT id, kind, payment_id, amount_minor, currency, state, reference, '', created_at, false
FROM psp_operations
WHERE id > $1 AND state = 'succeeded' AND ended_at < $2 AND created_at >= $3 AND created_at < $4
ORDER BY id LIMIT 1000`

// compareOurs looks for each operation that succeeded in what the PSP has executed.
func (c *comparison) compareOurs(ctx context.Context, began time.Time) error {
	for after := (uuid.UUID{}); ; {
		rows, _ := c.db.Query(ctx, listSucceeded, after, began, c.from, c.to) // CollectRows returns its error
		page, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ours])
		if err != nil {
			return fmt.Errorf("list operations: %w", err)
		}
		if len(page) == 0 {
			return nil
		}
		after = page[len(page)-1].ID

		for _, o := range page {
			c.found.Operations++
			if _, executed := c.executed[o.ID]; !executed {
				c.differs(difference{
					What: missingThere, Kind: o.Kind, OperationID: o.ID.String(),
					PaymentID: o.PaymentID.String(), Reference: o.Reference,
					Ours: money(o.AmountMinor, o.Currency),
				})
			}
		}
		c.say("%d operations of ours compared", c.found.Operations)
	}
}

const sayEvery = 5 * time.Second

// say tells how far a long run is.
func (c *comparison) say(format string, args ...any) {
	if time.Since(c.said) > sayEvery {
		c.said = time.Now()
		fmt.Fprintf(c.progress, format+"\n", args...)
	}
}
