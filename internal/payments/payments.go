package payments

import (
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/idempotency"
)

// Request is a command with the key it came under and what the audit trail keeps of it.
type Request struct {
	idempotency.Request
	Method  string            // HTTP method, for the audit trail
	Route   string            // route pattern, for the audit trail
	Headers map[string]string // go with the event: trace context
	At      time.Time         // when it is decided, by the database clock; set from the claim
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

// CreatePayment moves money between two different accounts of one tenant and one currency.
type CreatePayment struct {
	AmountMinor        int64 // 1 to MaxAmount, in minor units of the currency
	Currency           string
	SourceAccount      uuid.UUID
	DestinationAccount uuid.UUID
	Description        string // up to 500 characters
	Metadata           map[string]string
	ClientReference    string // up to 255 characters
	MayFund            bool   // the credential may name a system account as the source
}

func (CreateAccount) command() {}
func (CreatePayment) command() {}

// MaxAmount is the most that one payment moves, in minor units. It is below 2^53, so that every
// JSON parser reads it exactly.
const MaxAmount = 1_000_000_000_000

// Kind is what an account is for.
type Kind string

// The kinds of accounts.
const (
	Customer Kind = "customer" // never below zero
	System   Kind = "system"   // where money comes from: one per tenant and currency
)

// Account holds money of one tenant in one currency. The API and the event account.opened carry its
// JSON form.
type Account struct {
	ID           uuid.UUID `json:"id"`
	Currency     string    `json:"currency"`
	Kind         Kind      `json:"kind"`
	Name         string    `json:"name"`
	BalanceMinor int64     `json:"balance_minor"`
	CreatedAt    time.Time `json:"created_at"`
}

// Status is the state of a payment.
type Status string

// The statuses of a payment.
const (
	Completed Status = "completed" // the money has moved
	Declined  Status = "declined"  // recorded, but no money moved
)

// Payment is a payment that was decided. The API and its event carry its JSON form.
type Payment struct {
	ID                 uuid.UUID         `json:"id"`
	Status             Status            `json:"status"`
	DeclineCode        Code              `json:"decline_code,omitempty"`
	AmountMinor        int64             `json:"amount_minor"`
	Currency           string            `json:"currency"`
	SourceAccount      uuid.UUID         `json:"source_account"`
	DestinationAccount uuid.UUID         `json:"destination_account"`
	Description        string            `json:"description"`
	Metadata           map[string]string `json:"metadata"`
	ClientReference    string            `json:"client_reference"`
	ProcessedAt        time.Time         `json:"processed_at"`
}

// Entry is one line of an account's ledger. The two entries of a payment sum to zero.
type Entry struct {
	ID                uuid.UUID `json:"id"`
	PaymentID         uuid.UUID `json:"payment_id"`
	AmountMinor       int64     `json:"amount_minor"` // signed: what it adds to the balance
	BalanceAfterMinor int64     `json:"balance_after_minor"`
	CreatedAt         time.Time `json:"created_at"`
}

// Code names the business reason for a refusal. It is the code of the API's problem documents.
type Code string

// The reasons for which a well-formed command is refused.
const (
	InsufficientFunds Code = "insufficient-funds"    // the payment is recorded as declined
	UnknownAccount    Code = "unknown-account"       // does not exist, or is another tenant's
	CurrencyMismatch  Code = "currency-mismatch"     // an account is kept in another currency
	FundingForbidden  Code = "funding-forbidden"     // a system account pays only with accounts:fund
	AmountOutOfRange  Code = "amount-out-of-range"   // a balance would overflow int64
	SystemExists      Code = "system-account-exists" // the tenant already has one in this currency
)

// Outcome is the result of one request. Exactly one of Account, Payment and Refusal is set, except
// for a declined payment, which has Payment and Refusal.
type Outcome struct {
	Account *Account
	Payment *Payment
	Refusal *Refusal
}

// Refusal is why no money moved. It is an answer like any other: stored under the key and replayed.
type Refusal struct {
	Code    Code
	Account uuid.UUID // the account it is about, if any
}
