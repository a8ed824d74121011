package payments

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/oncepay/oncepay/internal/idempotency"
)

// Request is a command with the key it came under and what the audit trail keeps of it.
type Request struct {
	idempotency.Request
	Method  string            // HTTP method, for the audit trail
	Route   string            // route pattern, for the audit trail
	Headers map[string]string // go with the event: trace context
	At      time.Time         // when it is decided, by the database clock; set from the claim, or by Execute
	Command Command
}

// Command is what a client asks for. It has passed every check that needs no data.
type Command interface{ command() }

// CreateAccount opens an account with a balance of zero.
type CreateAccount struct {
	Kind     Kind
	Currency string // ISO 4217, see KnownCurrency
	Name     string // up to 100 characters; may be empty
}

// CreatePayment moves money between two different accounts of one tenant and one currency, or holds
// it for a later CapturePayment. With a Card, the money comes from outside.
type CreatePayment struct {
	AmountMinor        int64 // 1 to MaxAmount, in minor units of the currency
	Currency           string
	SourceAccount      uuid.UUID // zero with a Card: the tenant's clearing account pays
	DestinationAccount uuid.UUID
	Description        string // up to 500 characters
	Metadata           map[string]string
	ClientReference    string // up to 255 characters
	MayFund            bool   // the credential may name a system account as the source

	// Card is what the client's page got from the PSP in place of the card, up to 255 characters. The
	// PSP is asked later, outside of this transaction. Empty: no card.
	Card string

	// Authorization is how long the money is held for a capture; zero moves it at once.
	Authorization time.Duration
}

// CapturePayment moves the money of an authorized payment and releases what is left of the hold.
type CapturePayment struct {
	Target
	AmountMinor int64 // up to the authorized amount; zero: all of it
}

// CancelPayment releases the hold of an authorized payment.
type CancelPayment struct{ Target }

// RefundPayment moves money of a completed payment back.
type RefundPayment struct {
	Target
	AmountMinor int64  // up to what was captured and not refunded; zero: all of that
	Reason      string // up to 500 characters
	Metadata    map[string]string
}

// expirePayment releases the hold of an authorized payment whose time is over.
type expirePayment struct{ Target }

// settlePayment ends a payment by card, or a refund of one, by what the PSP made of it.
type settlePayment struct {
	Target
	RefundID *uuid.UUID     // the refund; nil: the payment itself
	State    OperationState // Succeeded, OperationDeclined or OperationFailed
	Code     Code           // of the last two
}

// Target is the payment that a later command is about.
type Target struct {
	PaymentID uuid.UUID
	IfVersion int64 // refuse unless the payment has this version; zero: any
}

func (t Target) target() Target { return t }

func (CreateAccount) command()  {}
func (CreatePayment) command()  {}
func (CapturePayment) command() {}
func (CancelPayment) command()  {}
func (RefundPayment) command()  {}
func (expirePayment) command()  {}
func (settlePayment) command()  {}

// targetOf returns the payment that c is about, if c needs one that is there.
func targetOf(c Command) (Target, bool) {
	if later, ok := c.(interface{ target() Target }); ok {
		return later.target(), true
	}
	return Target{}, false
}

// releases reports whether c only releases a hold, which concerns the source account alone.
func releases(c Command) bool {
	switch c.(type) {
	case CancelPayment, expirePayment:
		return true
	}
	return false
}

// hasClient reports whether c came from a client, under a key.
func hasClient(c Command) bool {
	switch c.(type) {
	case expirePayment, settlePayment:
		return false
	}
	return true
}

// How long an authorization may last.
const (
	DefaultAuthorization = 7 * 24 * time.Hour
	MinAuthorization     = time.Minute
	MaxAuthorization     = 30 * 24 * time.Hour
)

// MaxAmount is the most that one payment moves, in minor units. It is below 2^53, so that every
// JSON parser reads it exactly.
const MaxAmount = 1_000_000_000_000

// Kind is what an account is for.
type Kind string

// The kinds of accounts.
const (
	Customer Kind = "customer" // never below zero
	System   Kind = "system"   // where money comes from: one per tenant and currency
	Clearing Kind = "clearing" // what came by card: one per tenant and currency; below zero by what the PSP owes
)

// Account holds money of one tenant in one currency. The API and the event account.opened carry its
// JSON form.
type Account struct {
	ID           uuid.UUID `json:"id"`
	Currency     string    `json:"currency"`
	Kind         Kind      `json:"kind"`
	Name         string    `json:"name"`
	BalanceMinor int64     `json:"balance_minor"`
	HeldMinor    int64     `json:"held_minor"` // its authorized payments, and refunds that are processing
	CreatedAt    time.Time `json:"created_at"`
}

// AvailableMinor is what the account can spend. It is below zero only for a system or clearing
// account.
func (a Account) AvailableMinor() int64 { return a.BalanceMinor - a.HeldMinor }

// MarshalJSON adds available_minor.
func (a Account) MarshalJSON() ([]byte, error) {
	type plain Account
	return json.Marshal(struct {
		plain
		AvailableMinor int64 `json:"available_minor"`
	}{plain(a), a.AvailableMinor()})
}

// Payment is a payment that was decided, as its last command left it. The API and its events carry
// its JSON form.
type Payment struct {
	ID                 uuid.UUID         `json:"id"`
	Status             Status            `json:"status"`
	DeclineCode        Code              `json:"decline_code,omitempty"`
	AmountMinor        int64             `json:"amount_minor"`
	CapturedMinor      int64             `json:"captured_minor"`            // what moved: the amount, or less of a hold
	RefundedMinor      int64             `json:"refunded_minor"`            // what moved back, in all
	RefundingMinor     int64             `json:"refunding_minor,omitempty"` // what is to move back, with the PSP
	Currency           string            `json:"currency"`
	SourceAccount      uuid.UUID         `json:"source_account"`
	DestinationAccount uuid.UUID         `json:"destination_account"`
	Description        string            `json:"description"`
	Metadata           map[string]string `json:"metadata"`
	ClientReference    string            `json:"client_reference"`
	ProcessedAt        time.Time         `json:"processed_at"`

	// Of a payment by card: nil for one between accounts.
	PaymentMethod *PaymentMethod `json:"payment_method,omitempty"`
	SettledAt     *time.Time     `json:"settled_at,omitempty"` // when the PSP's result was recorded

	// Of a payment that was authorized first: until when it can be captured, and when it was
	// captured, canceled or expired.
	AuthorizationExpiresAt *time.Time `json:"authorization_expires_at,omitempty"`
	AuthorizationEndedAt   *time.Time `json:"authorization_ended_at,omitempty"`

	Version int64 `json:"version"` // goes up by one with every event
}

// PaymentMethod is how a payment is paid, if not from an account.
type PaymentMethod struct {
	Type string `json:"type"` // "card"
}

// ScanText reads the column payment_method.
func (m *PaymentMethod) ScanText(v pgtype.Text) error {
	m.Type = v.String
	return nil
}

// Refund is money that went back, or that the payee did not have. The API and its event carry its
// JSON form.
type Refund struct {
	ID                 uuid.UUID         `json:"id"`
	PaymentID          uuid.UUID         `json:"payment_id"`
	Status             Status            `json:"status"` // Completed or Declined; by card also Processing or Failed
	DeclineCode        Code              `json:"decline_code,omitempty"`
	AmountMinor        int64             `json:"amount_minor"`
	Currency           string            `json:"currency"`
	SourceAccount      uuid.UUID         `json:"source_account"`      // who gives: the payment's destination
	DestinationAccount uuid.UUID         `json:"destination_account"` // who gets: the payment's source
	Reason             string            `json:"reason"`
	Metadata           map[string]string `json:"metadata"`
	ProcessedAt        time.Time         `json:"processed_at"`
	SettledAt          *time.Time        `json:"settled_at,omitempty"` // when the PSP's result was recorded
	PaymentVersion     int64             `json:"payment_version"`      // of the payment, after the refund was asked for
}

// Entry is one line of an account's ledger. The two entries of a payment, or of a refund, sum to
// zero.
type Entry struct {
	ID                uuid.UUID  `json:"id"`
	PaymentID         uuid.UUID  `json:"payment_id"`
	RefundID          *uuid.UUID `json:"refund_id,omitempty"` // of the refund, if it is one
	AmountMinor       int64      `json:"amount_minor"`        // signed: what it adds to the balance
	BalanceAfterMinor int64      `json:"balance_after_minor"`
	CreatedAt         time.Time  `json:"created_at"`
}

// Code names the business reason for a refusal. It is the code of the API's problem documents.
type Code string

// The reasons for which a well-formed command is refused.
const (
	InsufficientFunds Code = "insufficient-funds"      // the payment or refund is recorded as declined
	UnknownAccount    Code = "unknown-account"         // does not exist, or is another tenant's
	CurrencyMismatch  Code = "currency-mismatch"       // an account is kept in another currency
	FundingForbidden  Code = "funding-forbidden"       // a system account pays only with accounts:fund
	AmountOutOfRange  Code = "amount-out-of-range"     // a balance would overflow int64
	SystemExists      Code = "system-account-exists"   // the tenant already has one in this currency
	ClearingExists    Code = "clearing-account-exists" // the tenant already has one in this currency

	// Only of payments by card.
	CardsNotEnabled Code = "cards-not-enabled" // the tenant has no clearing account in the currency
	SameAccount     Code = "same-account"      // the clearing account is the destination
	CardDeclined    Code = "card-declined"     // the PSP declined; recorded
	RefusedByPSP    Code = "refused-by-psp"    // the PSP found it invalid and did nothing; recorded

	UnknownPayment          Code = "not-found"                 // does not exist, or is another tenant's
	VersionMismatch         Code = "version-mismatch"          // the payment has another version than IfVersion
	InvalidState            Code = "invalid-state"             // its status does not allow the command
	AuthorizationExpired    Code = "authorization-expired"     // its time was over when the command was decided
	AmountExceedsAuthorized Code = "amount-exceeds-authorized" // more is captured than was held
	AmountExceedsCaptured   Code = "amount-exceeds-captured"   // more is refunded than is left
)

// Outcome is the result of one request. Exactly one of Account, Payment, Refund and Refusal is set,
// except for a declined payment or refund, which has its Refusal as well.
type Outcome struct {
	Account *Account
	Payment *Payment
	Refund  *Refund
	Refusal *Refusal

	version int64 // of the payment afterwards, if there is one
	moving  bool  // nothing was done: the tenant leaves

	// JSON is the form of what is set, except of a Refusal. It is made once, for the answer and the
	// event.
	JSON []byte
}

// Refusal is why no money moved. It is an answer like any other: stored under the key and replayed.
type Refusal struct {
	Code    Code
	Account uuid.UUID // the account it is about, if any

	// Of the payment that a later command was about.
	PaymentID uuid.UUID
	Status    Status // as it is
	Version   int64  // as it is
	LeftMinor int64  // the most that could be captured or refunded
}
