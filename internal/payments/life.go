package payments

// Status is the state of a payment, or of a refund.
type Status string

// The statuses of a payment. A refund is Completed or Declined from the start, or, by card,
// Processing until it is Completed, Declined or Failed.
const (
	Authorized Status = "authorized" // the amount is held, nothing has moved
	Processing Status = "processing" // it is with the PSP, or on its way
	Completed  Status = "completed"  // the money has moved
	Canceled   Status = "canceled"   // the hold was released by a command
	Expired    Status = "expired"    // the hold was released because its time was over
	Declined   Status = "declined"   // recorded, but no money moved
	Failed     Status = "failed"     // the PSP could not do it; no money moved
)

// action is what a command does to a payment.
type action string

const (
	pay       action = "pay"
	authorize action = "authorize"
	decline   action = "decline"
	capture   action = "capture"
	cancel    action = "cancel"
	expire    action = "expire"
	refund    action = "refund"

	// By card.
	charge     action = "charge"
	succeed    action = "succeed"
	fail       action = "fail"
	settleBack action = "settle refund"
)

type transition struct {
	from Status // empty: the payment does not exist yet
	action
	to Status
}

// life is the whole life of a payment: what is not in it does not happen. The diagram in
// docs/payments.md is made from it.
var life = []transition{
	{"", pay, Completed},
	{"", authorize, Authorized},
	{"", decline, Declined},
	{"", charge, Processing},
	{Processing, succeed, Completed},
	{Processing, decline, Declined},
	{Processing, fail, Failed},
	{Authorized, capture, Completed},
	{Authorized, cancel, Canceled},
	{Authorized, expire, Expired},
	{Completed, refund, Completed},
	{Completed, settleBack, Completed},
}

// next returns the status after an action, and whether it is allowed.
func next(from Status, a action) (to Status, allowed bool) {
	for _, l := range life {
		if l.from == from && l.action == a {
			return l.to, true
		}
	}
	return "", false
}
