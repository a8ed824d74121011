package payments

import "time"

// The business rules of money that comes by card. Nothing moves until the PSP has said what it did:
// a payment is processing, and so is a refund, for as long as that takes.

// decideCharge asks the PSP for the amount of p. The clearing account pays it to the destination once
// the PSP has it.
func decideCharge(p *Payment, card string, destination *account) decision {
	if destination.ID == p.SourceAccount {
		return refuse(Refusal{Code: SameAccount, Account: destination.ID})
	}
	// Better refused now than charged and not booked.
	if _, fits := add(destination.BalanceMinor, p.AmountMinor); !fits {
		return refuse(Refusal{Code: AmountOutOfRange, Account: destination.ID})
	}

	p.Status, _ = next("", charge)
	p.PaymentMethod = &PaymentMethod{Type: byCard}
	return decision{payment: p, asked: &Operation{
		ID: newID(p.ProcessedAt), PaymentID: p.ID, Kind: Charge,
		AmountMinor: p.AmountMinor, Currency: p.Currency, CardToken: card,
	}}
}

// decideRefundByCard reserves the amount on the payee's account and asks the PSP to give it back.
func decideRefundByCard(p *Payment, r *Refund, payee *account) decision {
	held, fits := add(payee.HeldMinor, r.AmountMinor)
	if _, ok := add(payee.BalanceMinor, -held); !ok || !fits {
		return refuse(Refusal{Code: AmountOutOfRange, Account: payee.ID})
	}

	r.Status = Processing
	p.RefundingMinor += r.AmountMinor
	return decision{payment: p, refund: r, holder: payee, held: r.AmountMinor, asked: &Operation{
		ID: newID(r.ProcessedAt), PaymentID: p.ID, RefundID: &r.ID, Kind: RefundCharge,
		AmountMinor: r.AmountMinor, Currency: r.Currency,
	}}
}

// decideSettle ends a payment that is processing, or one of its refunds, as the PSP did. It refuses
// what has ended already.
func decideSettle(s state, c settlePayment, at time.Time) decision {
	if c.RefundID != nil {
		return decideSettleRefund(s, c, at)
	}

	a := map[OperationState]action{Succeeded: succeed, OperationDeclined: decline, OperationFailed: fail}[c.State]
	p, refusal := after(s.payment, a, at)
	if refusal != nil {
		return refuse(*refusal)
	}

	p.SettledAt, p.DeclineCode = &at, c.Code
	d := decision{payment: p}
	if c.State != Succeeded {
		return d
	}
	p.CapturedMinor = p.AmountMinor
	return transfer(d, s.source, s.destination, p.AmountMinor, at)
}

func decideSettleRefund(s state, c settlePayment, at time.Time) decision {
	p, refusal := after(s.payment, settleBack, at)
	switch {
	case refusal != nil:
		return refuse(*refusal)
	case s.refund == nil || s.refund.Status != Processing:
		return refuse(refusalOf(s.payment, InvalidState))
	}

	r := *s.refund
	r.SettledAt, r.DeclineCode = &at, c.Code
	r.Status = map[OperationState]Status{
		Succeeded: Completed, OperationDeclined: Declined, OperationFailed: Failed,
	}[c.State]

	// What was reserved is free again, or goes now.
	p.RefundingMinor -= r.AmountMinor
	d := decision{payment: p, refund: &r, holder: s.destination, held: -r.AmountMinor}
	if c.State != Succeeded {
		return d
	}
	p.RefundedMinor += r.AmountMinor
	return transfer(d, s.destination, s.source, r.AmountMinor, at)
}

// refundable is what can still be refunded.
func (p *Payment) refundable() int64 { return p.CapturedMinor - p.RefundedMinor - p.RefundingMinor }
