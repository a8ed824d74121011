package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/payments"
)

// problem is an RFC 9457 problem document, and the error that becomes one.
type problem struct {
	Type      string       `json:"type"`
	Title     string       `json:"title"`
	Status    int          `json:"status"`
	Detail    string       `json:"detail,omitempty"`
	Instance  string       `json:"instance,omitempty"`
	Code      string       `json:"code"`
	RequestID string       `json:"request_id,omitempty"`
	Retry     string       `json:"retry"`
	Errors    []fieldError `json:"errors,omitempty"`

	// Of the payment that was declined, or that the request was about, as the request left it.
	PaymentID      *uuid.UUID      `json:"payment_id,omitempty"`
	PaymentStatus  payments.Status `json:"payment_status,omitempty"`
	PaymentVersion int64           `json:"payment_version,omitempty"`
	LeftMinor      *int64          `json:"left_minor,omitempty"` // the most that would have been possible
	RefundID       *uuid.UUID      `json:"refund_id,omitempty"`  // of the refund that was declined

	header map[string]string // sent with the answer: Retry-After, Allow …
	cause  error             // logged, hidden from the client
}

// fieldError is one mistake in a request, in a member of its body or a parameter of its query.
type fieldError struct {
	Pointer   string `json:"pointer,omitempty"` // JSON Pointer as a URI fragment (RFC 6901)
	Parameter string `json:"parameter,omitempty"`
	Code      string `json:"code"`
	Detail    string `json:"detail"`
}

// What a client can do after a problem.
const (
	retrySameKey = "same-key" // repeat the identical request under the same key
	retryNewKey  = "new-key"  // later or changed, the request may succeed under a new key
	retryNever   = "never"    // repeating is useless; a corrected request is another request
)

// typePrefix begins every problem type. It is a relative reference, as RFC 9457 section 3.1.1
// allows: clients compare types and do not fetch them.
const typePrefix = "/problems/"

// kinds lists every code of the API. Codes are a promise: they are not renamed.
var kinds = map[string]struct {
	status int
	title  string
	retry  string
}{
	// Refused before anything is looked up.
	"unauthorized":           {401, "The credential is missing or not valid", retryNever},
	"not-found":              {404, "There is no such resource", retryNever},
	"method-not-allowed":     {405, "The resource does not support this method", retryNever},
	"request-timeout":        {408, "The body did not arrive in time", retrySameKey},
	"body-too-large":         {413, "The body is too large", retryNever},
	"unsupported-media-type": {415, "The body must be application/json in UTF-8", retryNever},
	"rate-limited":           {429, "Too many requests", retrySameKey},
	"invalid-query":          {400, "The query is not valid", retryNever},
	"invalid-cursor":         {400, "The cursor is not valid for this list", retryNever},
	"if-match-invalid":       {400, "The If-Match header is not valid", retryNever},

	// About the key.
	"idempotency-key-missing":    {400, "The Idempotency-Key header is missing", retryNever},
	"idempotency-key-invalid":    {400, "The Idempotency-Key is not valid", retryNever},
	"idempotency-key-reused":     {422, "The Idempotency-Key was used for another request", retryNewKey},
	"idempotency-key-unreadable": {503, "The key was stored by another version of the service", retrySameKey},
	"request-in-progress":        {409, "A request with this Idempotency-Key is in progress", retrySameKey},

	// About the form of the body.
	"malformed-json":   {400, "The body is not one well-formed JSON object", retryNever},
	"invalid-encoding": {400, "The body contains invalid Unicode text", retryNever},
	"duplicate-member": {400, "The body names a member twice", retryNever},
	"unknown-field":    {422, "The body has an unknown member", retryNever},
	"invalid-field":    {422, "A member of the body is missing or not valid", retryNever},
	"invalid-amount":   {422, "The amount is not valid", retryNever},
	"invalid-currency": {422, "The currency is unknown", retryNever},
	"same-account":     {422, "Source and destination are the same account", retryNever},

	// About webhook endpoints.
	"too-many-webhook-endpoints": {422, "The tenant has too many webhook endpoints", retryNewKey},

	// Decided on data, stored under the key and replayed. The codes are those of payments.Code.
	"insufficient-funds":    {402, "The source account has insufficient funds", retryNewKey},
	"unknown-account":       {422, "The account is unknown", retryNewKey},
	"amount-out-of-range":   {422, "A balance would overflow", retryNewKey},
	"currency-mismatch":     {422, "The account is kept in another currency", retryNever},
	"funding-forbidden":     {403, "The credential may not fund accounts", retryNewKey},
	"system-account-exists": {409, "There is already a system account in this currency", retryNever},

	// The same, about money that comes by card.
	"cards-not-enabled":       {422, "Cards are not enabled in this currency", retryNewKey},
	"clearing-account-exists": {409, "There is already a clearing account in this currency", retryNever},

	// The same, about a payment that is there. Besides, not-found is stored for one that is not.
	"version-mismatch":          {412, "The payment has another version", retryNewKey},
	"invalid-state":             {409, "The status of the payment does not allow this", retryNewKey},
	"authorization-expired":     {409, "The authorization has expired", retryNever},
	"amount-exceeds-authorized": {422, "The amount is more than was authorized", retryNever},
	"amount-exceeds-captured":   {422, "The amount is more than is left to refund", retryNever},

	// About a webhook of the PSP.
	"webhook-signature-invalid": {401, "The webhook is not signed, or its signature is not valid", retryNever},
	"webhook-malformed":         {400, "The webhook is not valid", retryNever},

	// Not the client's fault.
	"outcome-unknown": {503, "The outcome of the request is not known yet", retrySameKey},
	"unavailable":     {503, "The service is not available", retrySameKey},
	"internal":        {500, "An internal error occurred", retrySameKey},
}

// refuse returns a problem. It panics on a code that is not in kinds.
func refuse(code, format string, args ...any) *problem {
	k, ok := kinds[code]
	if !ok {
		panic("httpapi: problem without a kind: " + code)
	}

	return &problem{
		Type: typePrefix + code, Title: k.title, Status: k.status,
		Code: code, Retry: k.retry, Detail: fmt.Sprintf(format, args...),
	}
}

// with adds a header to the answer.
func (p *problem) with(name, value string) *problem {
	if p.header == nil {
		p.header = map[string]string{}
	}
	p.header[name] = value
	return p
}

// later asks the client to wait a moment before it retries.
func (p *problem) later() *problem { return p.with("Retry-After", soon()) }

// because keeps the cause for the log.
func (p *problem) because(err error) *problem {
	p.cause = err
	return p
}

func (p *problem) Error() string {
	if p.cause != nil {
		return p.Code + ": " + p.cause.Error()
	}
	return p.Code + ": " + p.Detail
}

func (p *problem) Unwrap() error { return p.cause }

const problemJSON = "application/problem+json"

func (p *problem) response() response {
	return response{status: p.Status, contentType: problemJSON, body: encode(p)}
}

func ok(v any) response {
	return response{status: http.StatusOK, contentType: applicationJSON, body: encode(v)}
}

const applicationJSON = "application/json"

// encode returns v as JSON. It is called with types of this package and of payments only, which
// never fail.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Errorf("httpapi: encode answer: %w", err))
	}
	return b
}
