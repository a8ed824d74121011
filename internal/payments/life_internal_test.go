package payments

import (
	"fmt"
	"maps"
	"math"
	"math/big"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
)

// A payment lives through a random series of commands at random times, some of them before the ones
// that came earlier. A seed that fails names itself.
func TestLife(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	for seed := range uint64(10_000) {
		random := rand.New(rand.NewPCG(seed, 11))
		s := state{source: randomAccount(random), destination: randomAccount(random)}
		s.destination.Currency = s.source.Currency
		if s.source.Kind == System && random.IntN(2) == 0 {
			s.source.Kind = Clearing
		}
		refunds := map[uuid.UUID]*Refund{} // that went to the PSP
		created := time.UnixMilli(1_700_000_000_000).UTC()

		for step := range 12 {
			s.refund = nil
			c := randomCommand(random, s, refunds)
			if c, ok := c.(settlePayment); ok && c.RefundID != nil {
				s.refund = refunds[*c.RefundID]
			}
			at := created.Add(time.Duration(random.IntN(4000)-500) * time.Millisecond)
			if s.payment != nil && s.payment.AuthorizationExpiresAt != nil && random.IntN(3) == 0 {
				at = s.payment.AuthorizationExpiresAt.Add(pick(random, -time.Millisecond, 0))
			}
			before, source, destination := copyOf(s.payment), *s.source, *s.destination
			refund := copyOf(s.refund)
			d := decide(s, c, newID(at), at)

			for _, wrong := range lawsBroken(s, c, d, at) {
				t.Fatalf("seed %d, step %d, %T: %s\nbefore %+v\nafter %+v", seed, step, c, wrong, before, d.payment)
			}
			if !reflect.DeepEqual(before, s.payment) || !reflect.DeepEqual(refund, s.refund) || source != *s.source || destination != *s.destination {
				t.Fatalf("seed %d: deciding changed what it looked at", seed)
			}
			seen[whatHappened(c, d)]++
			follow(&s, d)
			if d.refund != nil && d.payment.PaymentMethod != nil && d.refund.DeclineCode != InsufficientFunds {
				refunds[d.refund.ID] = d.refund
			}
			if random.IntN(4) == 0 { // other payments come between
				reserved := int64(0)
				if s.payment != nil {
					reserved = s.payment.RefundingMinor
				}
				s.destination.BalanceMinor = pick(random, reserved, max(reserved, s.destination.HeldMinor/2), math.MaxInt64)
				if s.destination.HeldMinor = reserved; s.destination.Kind == System {
					s.destination.BalanceMinor = pick(random, math.MinInt64+reserved, math.MinInt64+reserved+50)
				}
			}
		}
	}

	for _, what := range []string{
		"CreatePayment: completed", "CreatePayment: authorized", "CreatePayment: declined", "CreatePayment: amount-out-of-range",
		"CapturePayment: completed", "CapturePayment: not-found", "CapturePayment: version-mismatch", "CapturePayment: invalid-state",
		"CapturePayment: authorization-expired", "CapturePayment: amount-exceeds-authorized", "CapturePayment: amount-out-of-range",
		"CancelPayment: canceled", "CancelPayment: authorization-expired", "CancelPayment: invalid-state",
		"RefundPayment: completed", "RefundPayment: refund declined", "RefundPayment: amount-exceeds-captured",
		"CreatePayment: processing", "settlePayment: completed", "settlePayment: declined", "settlePayment: failed", "settlePayment: amount-out-of-range",
		"settlePayment: invalid-state", "settlePayment: not-found", "RefundPayment: refund processing", "settlePayment: refund completed",
		"settlePayment: refund declined", "settlePayment: refund failed",
		"RefundPayment: invalid-state", "RefundPayment: amount-out-of-range", "expirePayment: expired", "expirePayment: invalid-state",
	} {
		if seen[what] < 20 {
			t.Errorf("%s: happened only %d times", what, seen[what])
		}
	}
}

func randomCommand(random *rand.Rand, s state, refunds map[uuid.UUID]*Refund) Command {
	if s.payment == nil && random.IntN(10) > 0 {
		card := ""
		if s.source.Kind == Clearing && random.IntN(4) > 0 {
			card = "tok"
		}
		return CreatePayment{
			Card:        card,
			AmountMinor: pick(random, 1, 1+random.Int64N(100), MaxAmount, max(1, min(MaxAmount, s.source.BalanceMinor))), Currency: s.source.Currency,
			SourceAccount: s.source.ID, DestinationAccount: s.destination.ID, MayFund: true,
			Authorization: pick(random, 0, time.Millisecond, 1500*time.Millisecond, time.Hour, time.Second+time.Microsecond),
		}
	}

	var target Target
	amount := pick(random, 0, 1, 1+random.Int64N(100), MaxAmount, math.MaxInt64)
	if p := s.payment; p != nil {
		target = Target{p.ID, pick(random, 0, 0, 0, p.Version, p.Version+1, p.Version-1)}
		amount = pick(random, amount, p.AmountMinor, p.AmountMinor+1, 1+random.Int64N(p.AmountMinor), p.CapturedMinor-p.RefundedMinor)
	}
	state := pick(random, Succeeded, Succeeded, OperationDeclined, OperationFailed)
	settle := settlePayment{Target: Target{PaymentID: target.PaymentID}, State: state}
	if state != Succeeded {
		settle.Code = CardDeclined
	}
	settleRefund := settle
	for _, r := range slices.SortedFunc(maps.Values(refunds), func(a, b *Refund) int { return int(a.PaymentVersion - b.PaymentVersion) }) {
		if settleRefund.RefundID == nil || random.IntN(2) == 0 {
			settleRefund.RefundID = &r.ID
		}
	}
	if settleRefund.RefundID == nil && random.IntN(10) > 0 {
		settleRefund.RefundID = &uuid.UUID{9} // of no refund
	}
	if p := s.payment; p != nil && p.PaymentMethod != nil && random.IntN(2) == 0 {
		return pick[Command](random, settle, settleRefund, settleRefund, RefundPayment{target, 1 + random.Int64N(p.AmountMinor), "", nil})
	}
	return pick[Command](random, settle, settleRefund, CapturePayment{target, amount}, CapturePayment{target, 0}, CancelPayment{target},
		RefundPayment{target, amount, "why", nil}, RefundPayment{target, amount, "", nil}, expirePayment{target})
}

// lawsBroken tells which laws a decision breaks, whatever it decided.
func lawsBroken(s state, c Command, d decision, at time.Time) (broken []string) {
	law := func(holds bool, format string, args ...any) {
		if !holds {
			broken = append(broken, fmt.Sprintf(format, args...))
		}
	}

	if d.payment == nil {
		law(d.refusal != nil, "neither a payment nor a refusal")
		law(d.refund == nil && d.held == 0 && d.entries == nil && d.asked == nil, "a refusal leaves something behind")
		return broken
	}

	p, from, version := d.payment, Status(""), int64(0)
	held, captured, refunded, refunding := int64(0), int64(0), int64(0), int64(0)
	if s.payment != nil {
		from, version = s.payment.Status, s.payment.Version
		captured, refunded, refunding = s.payment.CapturedMinor, s.payment.RefundedMinor, s.payment.RefundingMinor
		law(p.ID == s.payment.ID && p.AmountMinor == s.payment.AmountMinor, "it is another payment")
	}
	if from == Authorized {
		held -= p.AmountMinor
	}
	if p.Status == Authorized {
		held += p.AmountMinor
	}

	law(slices.ContainsFunc(life, func(l transition) bool { return l.from == from && l.to == p.Status }), "%q to %q", from, p.Status)
	law(p.Version == version+1, "version %d after %d", p.Version, version)
	holder := s.source
	if reserved := p.RefundingMinor - refunding; reserved != 0 {
		law(held == 0 && p.PaymentMethod != nil, "a reservation of a payment that is not by card")
		held, holder = reserved, s.destination
	}
	law(d.held == held && (held == 0 || d.holder == holder), "%d is held, want %d", d.held, held)
	law(0 <= p.RefundedMinor && 0 <= p.RefundingMinor && p.RefundedMinor <= p.CapturedMinor-p.RefundingMinor && p.CapturedMinor <= p.AmountMinor, "captured or refunded too much")
	law((p.PaymentMethod != nil) == (from == Processing || p.Status == Processing || s.payment != nil && s.payment.PaymentMethod != nil), "by card or not")
	law((p.SettledAt != nil) == (p.PaymentMethod != nil && p.Status != Processing), "%s, settled at %v", p.Status, p.SettledAt)
	law((p.DeclineCode != "") == (p.Status == Declined || p.Status == Failed), "%s with the code %q", p.Status, p.DeclineCode)
	lawsOfOperation(law, d)
	law((p.CapturedMinor > 0) == (p.Status == Completed), "captured %d and %s", p.CapturedMinor, p.Status)
	law(p.Status != Declined || p.DeclineCode != "" && p.AuthorizationExpiresAt == nil, "declined, with a hold or no code")
	law((p.AuthorizationEndedAt != nil) == (p.AuthorizationExpiresAt != nil && p.Status != Authorized), "when the authorization ended")
	if from == Authorized {
		over := !at.Before(*p.AuthorizationExpiresAt)
		law(over == (p.Status == Expired), "%s at %s, over at %s", p.Status, at, p.AuthorizationExpiresAt)
	}

	// What moved from the payment's source to its destination is what it says.
	moved := (p.CapturedMinor - captured) - (p.RefundedMinor - refunded)
	if moved == 0 {
		law(d.entries == nil, "entries, but nothing moved")
		return broken
	}
	law(len(d.entries) == 2 && d.entries[0].AmountMinor+d.entries[1].AmountMinor == 0, "entries do not sum to zero")
	law((d.refund != nil) == (moved < 0), "money goes the wrong way")
	for _, e := range d.entries {
		a, sign := s.source, int64(-1)
		if e.accountID == s.destination.ID {
			a, sign = s.destination, 1
		}
		after := new(big.Int).Add(big.NewInt(a.BalanceMinor), big.NewInt(e.AmountMinor))
		law(e.AmountMinor == sign*moved, "entry of %d", e.AmountMinor)
		law(after.IsInt64() && after.Int64() == e.BalanceAfterMinor, "%d and %d give %d", a.BalanceMinor, e.AmountMinor, e.BalanceAfterMinor)
		law((e.RefundID != nil) == (d.refund != nil), "of a refund or not")

		available := after.Sub(after, big.NewInt(a.HeldMinor))
		if a == d.holder {
			available.Sub(available, big.NewInt(d.held))
		}
		law(available.IsInt64(), "available overflows")
		law(a.Kind != Customer || available.Sign() >= 0, "a customer can spend %s", available)
	}
	if _, refund := c.(RefundPayment); refund {
		law(d.refund.AmountMinor == -moved && d.refund.PaymentVersion == p.Version && d.refund.Status == Completed, "%+v", d.refund)
	}
	return broken
}

// lawsOfOperation tells what the PSP is asked, and what it leaves behind when it has answered.
func lawsOfOperation(law func(bool, string, ...any), d decision) {
	p, r, o := d.payment, d.refund, d.asked
	charged := p.Status == Processing && p.Version == 1
	back := r != nil && r.Status == Processing
	law((o != nil) == (charged || back), "the PSP is asked for %+v", o)
	if o != nil {
		law(o.PaymentID == p.ID && o.Currency == p.Currency && o.ID != p.ID, "%+v", o)
		law(!charged || o.Kind == Charge && o.AmountMinor == p.AmountMinor && o.RefundID == nil && o.CardToken == "tok", "%+v", o)
		law(!back || o.Kind == RefundCharge && o.AmountMinor == r.AmountMinor && *o.RefundID == r.ID && o.CardToken == "", "%+v", o)
		law(d.entries == nil, "money moves before the PSP has answered")
	}
	if r != nil {
		law((r.DeclineCode != "") == (r.Status == Declined || r.Status == Failed), "refund %s with the code %q", r.Status, r.DeclineCode)
		law((r.SettledAt == nil || p.PaymentMethod != nil) && (r.SettledAt == nil || r.Status != Processing), "refund %s settled at %v", r.Status, r.SettledAt)
	}
}

func whatHappened(c Command, d decision) string {
	name := fmt.Sprintf("%T: ", c)[len("payments."):]
	_, settled := c.(settlePayment)
	switch {
	case d.refund != nil && (settled || d.refund.Status == Processing):
		return name + "refund " + string(d.refund.Status)
	case d.refund != nil && d.refusal != nil:
		return name + "refund declined"
	case d.payment != nil:
		return name + string(d.payment.Status)
	}
	return name + string(d.refusal.Code)
}

// follow makes s what it is after the decision.
func follow(s *state, d decision) {
	if d.payment == nil {
		return
	}
	s.payment = d.payment
	if d.holder != nil {
		d.holder.HeldMinor += d.held
	}
	for _, e := range d.entries {
		a := s.source
		if e.accountID == s.destination.ID {
			a = s.destination
		}
		a.BalanceMinor, a.entryCount = e.BalanceAfterMinor, e.number
	}
}

func copyOf[T any](p *T) *T {
	if p == nil {
		return nil
	}
	q := *p
	return &q
}

// A system account may be so far below zero that a hold just fits. Its capture fits as well: the
// hold ends with it.
func TestCaptureFitsWhereItsHoldDid(t *testing.T) {
	t.Parallel()
	s := state{source: &account{Account: Account{ID: uuid.UUID{1}, Kind: System, Currency: "USD", BalanceMinor: math.MinInt64 + 10}},
		destination: &account{Account: Account{ID: uuid.UUID{2}, Kind: Customer, Currency: "USD"}}}
	at := time.UnixMilli(1).UTC()
	c := CreatePayment{AmountMinor: 10, Currency: "USD", SourceAccount: s.source.ID, DestinationAccount: s.destination.ID, MayFund: true, Authorization: time.Hour}
	held := decide(s, c, uuid.New(), at)
	if held.refusal != nil {
		t.Fatalf("not held: %+v", held.refusal)
	}
	follow(&s, held)

	captured := decide(s, CapturePayment{Target: Target{PaymentID: held.payment.ID}}, uuid.New(), at)
	if captured.refusal != nil {
		t.Errorf("not captured: %+v", captured.refusal)
	}
}

// The first answer and a later GET show the same time: the database keeps microseconds, and the
// sweep goes by milliseconds.
func TestExpiryIsInMilliseconds(t *testing.T) {
	t.Parallel()
	a, b := &account{Account: Account{Kind: System, Currency: "USD"}}, &account{Account: Account{Currency: "USD"}}
	at := time.UnixMilli(5).UTC()
	p := decide(state{payment: nil, source: a, destination: b}, CreatePayment{AmountMinor: 1, Currency: "USD", MayFund: true, Authorization: time.Millisecond + 999}, uuid.New(), at).payment
	if want := time.UnixMilli(6).UTC(); !p.AuthorizationExpiresAt.Equal(want) {
		t.Errorf("expires at %s, want %s", p.AuthorizationExpiresAt, want)
	}
}
