package traffic

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/client"
)

// caller is one client with its memory of earlier requests.
type caller struct {
	load    *Load
	shop    shop
	other   shop // another client of the same tenant
	name    int
	sent    int
	earlier []request // the last few that were answered
}

const (
	// tooMuch exceeds the balance of every account of the demo.
	tooMuch = 900_000_000_000

	// heldFor is short, so that a run of seconds sees holds expire.
	heldFor = 2 // seconds
)

// next sends one request, or a few that belong together. Some are deliberately wrong, repeated or
// cut off.
func (c *caller) next(ctx context.Context) {
	// kind is a percentage: each kind of request takes its share.
	kind := rand.IntN(100)

	switch {
	case kind < 15 && len(c.earlier) > 0:
		r := c.earlier[rand.IntN(len(c.earlier))]
		if kind < 5 {
			r = r.other() // a key used for another request: refused, and nothing happens
		}
		c.post(ctx, r)
		return

	case kind < 30:
		if hold, found := c.load.holds.take(); found {
			c.end(ctx, hold)
			return
		}

	case kind < 40:
		if paid, found := c.load.paid.take(); found {
			c.refund(ctx, paid)
			return
		}

	case kind < 42:
		// Perhaps it is still processing, or was declined: then this is refused.
		if paid, found := c.load.charged.take(); found {
			c.send(ctx, c.about(paid, "refunds", 1+rand.Int64N(paid.AmountMinor)))
			return
		}

	case kind < 50 && c.load.Cards:
		c.payByCard(ctx)
		return
	}

	c.pay(ctx)
}

// pay makes a payment, or holds its money for a later request.
func (c *caller) pay(ctx context.Context) {
	body := c.payment()
	switch kind := rand.IntN(60); {
	case kind < 3:
		body.AmountMinor = tooMuch // declined
	case kind < 5:
		body.DestinationAccount = uuid.New() // no such account
	}

	manual := rand.IntN(3) == 0
	if manual {
		body.Capture, body.AuthorizationSeconds = "manual", heldFor
	}

	a, known := c.send(ctx, request{shop: c.shop, path: paymentsPath, key: c.key(), body: body})
	m, made := readMade(a)
	switch {
	case !known || !made:
	case manual:
		c.load.holds.add(m)
	default:
		c.load.paid.add(m)
	}
}

// payByCard makes a payment that the PSP decides on later.
func (c *caller) payByCard(ctx context.Context) {
	body := c.payment()
	body.SourceAccount = uuid.Nil
	body.PaymentMethod = &paymentMethod{"card", "tok_visa"}
	if rand.IntN(20) == 0 {
		body.PaymentMethod.Token = "tok_declined"
	}

	a, known := c.send(ctx, request{shop: c.shop, path: paymentsPath, key: c.key(), body: body})
	if m, made := readMade(a); known && made {
		c.load.charged.add(m)
	}
}

func (c *caller) key() string {
	c.sent++
	return fmt.Sprintf("demo-%d-%d", c.name, c.sent)
}

func (c *caller) payment() payment {
	all := c.shop.seed.Accounts

	// Two different accounts.
	from := rand.IntN(len(all))
	to := (from + 1 + rand.IntN(len(all)-1)) % len(all)

	return payment{
		AmountMinor: 1 + rand.Int64N(1000), Currency: "USD",
		SourceAccount: all[from].ID, DestinationAccount: all[to].ID,
	}
}

// made is a payment that a client was told of.
type made struct {
	ID            uuid.UUID `json:"id"`
	AmountMinor   int64     `json:"amount_minor"`
	CapturedMinor int64     `json:"captured_minor"`
	RefundedMinor int64     `json:"refunded_minor"`
	Version       int64     `json:"version"`
}

// readMade returns the payment in an answer, if there is one.
func readMade(a client.Answer) (m made, ok bool) {
	err := json.Unmarshal(a.Body, &m)
	return m, err == nil && a.Status/100 == 2
}
