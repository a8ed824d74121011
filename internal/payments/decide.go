package payments

import (
	"time"

	"github.com/google/uuid"
)

// account is an Account with what only the ledger needs.
type account struct {
	Account
	tenantID   uuid.UUID
	entryCount int64
}

// entry is an Entry with its place in the ledger.
type entry struct {
	Entry
	accountID uuid.UUID
	tenantID  uuid.UUID // the account's
	number    int64     // 1, 2, 3 … within the account
	currency  string
}

// state is what a decision depends on. What the tenant does not have is nil.
type state struct {
	payment             *Payment // before the command
	refund              *Refund  // that is to be settled
	source, destination *account // of the payment
}

// decision is what a command leads to: something to record, or a refusal alone. A payment or refund
// that is recorded as declined has a refusal, too.
type decision struct {
	payment *Payment // after the command
	refund  *Refund
	asked   *Operation // what the PSP is asked to do
	holder  *account   // whose HeldMinor it changes, if held is not zero
	held    int64      // what it adds to that
	entries []entry    // two, which sum to zero, or none
	refusal *Refusal
}

func refuse(r Refusal) decision { return decision{refusal: &r} }

// decide holds the business rules of all commands about payments. It has no side effects: id is for
// what it makes, at is now, by the database clock.
func decide(s state, c Command, id uuid.UUID, at time.Time) decision {
	if c, ok := c.(CreatePayment); ok {
		return decideCreate(s, c, id, at)
	}

	target, _ := targetOf(c)
	p := s.payment
	switch {
	case p == nil:
		return refuse(Refusal{Code: UnknownPayment, PaymentID: target.PaymentID})
	case target.IfVersion != 0 && target.IfVersion != p.Version:
		return refuse(refusalOf(p, VersionMismatch))
	}

	switch c := c.(type) {
	case CapturePayment:
		return about(p, decideCapture(s, c, at))
	case RefundPayment:
		return about(p, decideRefund(s, c, id, at))
	case CancelPayment:
		return decideRelease(s, cancel, at)
	case settlePayment:
		return about(p, decideSettle(s, c, at))
	default: // expirePayment
		return decideRelease(s, expire, at)
	}
}

func decideCreate(s state, c CreatePayment, id uuid.UUID, at time.Time) decision {
	source, destination := s.source, s.destination
	if source == nil && c.Card != "" {
		return refuse(Refusal{Code: CardsNotEnabled})
	}
	if source == nil {
		return refuse(Refusal{Code: UnknownAccount, Account: c.SourceAccount})
	}
	if destination == nil {
		return refuse(Refusal{Code: UnknownAccount, Account: c.DestinationAccount})
	}

	for _, a := range []*account{source, destination} {
		if a.Currency != c.Currency {
			return refuse(Refusal{Code: CurrencyMismatch, Account: a.ID})
		}
	}
	if c.Card == "" && source.Kind != Customer && !c.MayFund {
		return refuse(Refusal{Code: FundingForbidden, Account: source.ID})
	}

	p := &Payment{
		ID: id, AmountMinor: c.AmountMinor, Currency: c.Currency,
		SourceAccount: source.ID, DestinationAccount: c.DestinationAccount,
		Description: c.Description, Metadata: orEmpty(c.Metadata), ClientReference: c.ClientReference,
		ProcessedAt: at, Version: 1,
	}

	if c.Card != "" {
		return decideCharge(p, c.Card, destination)
	}

	if lacks(source, c.AmountMinor) {
		p.Status, _ = next("", decline)
		p.DeclineCode = InsufficientFunds
		return decision{payment: p, refusal: &Refusal{Code: InsufficientFunds, Account: source.ID}}
	}

	if c.Authorization > 0 {
		held, fits := add(source.HeldMinor, c.AmountMinor)
		if _, ok := add(source.BalanceMinor, -held); !ok || !fits {
			return refuse(Refusal{Code: AmountOutOfRange, Account: source.ID})
		}
		expires := at.Add(c.Authorization).Truncate(time.Millisecond) // as precise as at
		p.Status, _ = next("", authorize)
		p.AuthorizationExpiresAt = &expires
		return decision{payment: p, holder: source, held: c.AmountMinor}
	}

	p.Status, _ = next("", pay)
	p.CapturedMinor = c.AmountMinor
	return transfer(decision{payment: p}, source, destination, c.AmountMinor, at)
}

// about completes a refusal that names an account only: a later command's names its payment, too.
func about(p *Payment, d decision) decision {
	if d.refusal != nil && d.refusal.PaymentID == uuid.Nil {
		refusal := refusalOf(p, d.refusal.Code)
		refusal.Account = d.refusal.Account
		d.refusal = &refusal
	}
	return d
}

// decideCapture moves all or a part of what is held, and releases all of the hold.
func decideCapture(s state, c CapturePayment, at time.Time) decision {
	p, refusal := after(s.payment, capture, at)
	if refusal != nil {
		return refuse(*refusal)
	}

	p.CapturedMinor = c.AmountMinor
	if c.AmountMinor == 0 {
		p.CapturedMinor = p.AmountMinor
	}
	if p.CapturedMinor > p.AmountMinor {
		return refuse(refusalOf(s.payment, AmountExceedsAuthorized))
	}

	d := decision{payment: p, holder: s.source, held: -p.AmountMinor}
	return transfer(d, s.source, s.destination, p.CapturedMinor, at)
}

// decideRelease lets go of what is held: nothing moves.
func decideRelease(s state, a action, at time.Time) decision {
	p, refusal := after(s.payment, a, at)
	if refusal != nil {
		return refuse(*refusal)
	}
	return decision{payment: p, holder: s.source, held: -p.AmountMinor}
}

// decideRefund moves money back. The payee may have spent it: that is recorded, like a payment that
// its payer cannot afford.
func decideRefund(s state, c RefundPayment, id uuid.UUID, at time.Time) decision {
	p, refusal := after(s.payment, refund, at)
	if refusal != nil {
		return refuse(*refusal)
	}

	amount, left := c.AmountMinor, p.refundable()
	if amount == 0 {
		amount = left
	}
	if amount > left || left == 0 {
		return refuse(refusalOf(s.payment, AmountExceedsCaptured))
	}

	r := &Refund{
		ID: id, PaymentID: p.ID, Status: Completed, AmountMinor: amount, Currency: p.Currency,
		SourceAccount: p.DestinationAccount, DestinationAccount: p.SourceAccount,
		Reason: c.Reason, Metadata: orEmpty(c.Metadata), ProcessedAt: at, PaymentVersion: p.Version,
	}
	if lacks(s.destination, amount) {
		r.Status, r.DeclineCode = Declined, InsufficientFunds
		refusal := refusalOf(p, InsufficientFunds)
		refusal.Account = s.destination.ID
		return decision{payment: p, refund: r, refusal: &refusal}
	}

	if p.PaymentMethod != nil {
		return decideRefundByCard(p, r, s.destination)
	}

	p.RefundedMinor += amount
	return transfer(decision{payment: p, refund: r}, s.destination, s.source, amount, at)
}

// after returns p as the action leaves it, or why the table of life does not allow the action. The
// clock decides when an authorization is over, whether or not it was swept.
func after(p *Payment, a action, at time.Time) (*Payment, *Refusal) {
	over := p.Status == Authorized && !at.Before(*p.AuthorizationExpiresAt)
	ended := over || p.Status == Expired

	to, allowed := next(p.Status, a)
	switch {
	case ended && (a == capture || a == cancel):
		refusal := refusalOf(p, AuthorizationExpired)
		return nil, &refusal
	case !allowed, a == expire && !over:
		refusal := refusalOf(p, InvalidState)
		return nil, &refusal
	}

	q := *p
	q.Status, q.Version = to, p.Version+1
	if p.Status == Authorized {
		q.AuthorizationEndedAt = &at
	}
	return &q, nil
}

// refusalOf returns a refusal of a command about p.
func refusalOf(p *Payment, code Code) Refusal {
	r := Refusal{Code: code, PaymentID: p.ID, Status: p.Status, Version: p.Version}
	switch p.Status {
	case Authorized:
		r.LeftMinor = p.AmountMinor
	case Completed:
		r.LeftMinor = p.refundable()
	}
	return r
}

// lacks reports whether a customer has less than amount to spend.
func lacks(a *account, amount int64) bool {
	return a.Kind == Customer && a.AvailableMinor() < amount
}

// transfer adds the two entries of amount from one account to the other to a decision. If a balance
// would overflow, it refuses instead.
func transfer(d decision, from, to *account, amount int64, at time.Time) decision {
	debited, ok := add(from.BalanceMinor, -amount)
	held := from.HeldMinor
	if d.holder == from {
		held += d.held
	}
	if _, fits := add(debited, -held); !ok || !fits { // what is available must fit as well
		return refuse(Refusal{Code: AmountOutOfRange, Account: from.ID})
	}
	credited, ok := add(to.BalanceMinor, amount)
	if !ok {
		return refuse(Refusal{Code: AmountOutOfRange, Account: to.ID})
	}

	d.entries = []entry{
		newEntry(d, from, -amount, debited, at),
		newEntry(d, to, amount, credited, at),
	}
	return d
}

func newEntry(d decision, a *account, amount, balance int64, at time.Time) entry {
	e := entry{
		Entry: Entry{
			ID: newID(at), PaymentID: d.payment.ID, CreatedAt: at,
			AmountMinor: amount, BalanceAfterMinor: balance,
		},
		accountID: a.ID, tenantID: a.tenantID, number: a.entryCount + 1, currency: d.payment.Currency,
	}
	if d.refund != nil {
		e.RefundID = &d.refund.ID
	}
	return e
}

// add returns a + b, and false if that overflows.
func add(a, b int64) (int64, bool) {
	sum := a + b
	return sum, (sum > a) == (b > 0)
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}
