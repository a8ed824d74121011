package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/oncepay/oncepay/internal/payments"
)

// PSPWebhooks lets the payment service provider tell what became of charges and refunds. It may be
// faster than the worker that asked, and it is the way to learn what a lost reply said.
//
// A webhook needs no inbox: an operation ends once, and a second delivery finds it ended. What it
// becomes is an Observation's Webhook:
//
//	applied    the operation ended, and its payment or refund with it
//	repeated   it had ended so before: a second delivery, or the worker was first
//	conflict   it had ended otherwise or under another id, or the amount is another: logged, for an operator
//	unbookable a balance would overflow: logged, for an operator
//	unknown    no operation of ours
//	ignored    a type that is not about a result
//	malformed  signed, but not what a PSP sends
//	forged     not signed, or with another secret, or too long ago
//	failed     not recorded, so the PSP has to send it again
type PSPWebhooks struct {
	Secret string // whsec_ and base64: New panics if it is not
	// Record records a result durably. An error means that the PSP has to send it again.
	Record func(context.Context, payments.Result) (payments.Recorded, error)
}

// maxPSPWebhooks is how many webhooks are read and recorded at a time; the PSP sends the others
// again. Strangers may send them, too, up to 64 KiB each.
const maxPSPWebhooks = 256

type psp struct {
	signature *standardwebhooks.Webhook
	record    func(context.Context, payments.Result) (payments.Recorded, error)
	places    chan struct{}
	log       *slog.Logger
}

func newPSP(o PSPWebhooks, log *slog.Logger) *psp {
	signature, err := standardwebhooks.NewWebhook(o.Secret)
	if err != nil {
		panic("httpapi: the secret of the PSP's webhooks is not base64")
	}
	return &psp{signature, o.Record, make(chan struct{}, maxPSPWebhooks), log}
}

// pspEvent and pspObject are the parts of a webhook that count. Members added later are ignored.
type pspEvent struct {
	Type string `json:"type"`
	Data struct {
		Object json.RawMessage `json:"object"`
	} `json:"data"`
}

// pspObject is a charge or a refund.
type pspObject struct {
	ID       string `json:"id"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	Metadata struct {
		OperationID string `json:"operation_id"`
		PaymentID   string `json:"payment_id"`
	} `json:"metadata"`
}

// receive takes one webhook. It answers 204 when there is nothing left to do for the PSP: the result
// is committed, or is none of ours, or waits for an operator.
func (p *psp) receive(c *call) (response, error) {
	select {
	case p.places <- struct{}{}:
		defer func() { <-p.places }()
	default:
		c.observe.Webhook = "failed"
		return response{}, refuse("unavailable", "Send the webhook again later.").later()
	}

	body, err := readBody(c.Request)
	if err != nil {
		c.observe.Webhook = "malformed"
		return response{}, err
	}

	// The library allows for five minutes either way. What is wrong is not told.
	if p.signature.Verify(body, c.Header) != nil {
		c.observe.Webhook = "forged"
		return response{}, errForged
	}

	c.observe.Webhook, err = p.take(c, body)
	if err != nil {
		return response{}, err
	}
	return response{status: http.StatusNoContent}, nil
}

var errForged = refuse("webhook-signature-invalid",
	"Sign webhooks by the Standard Webhooks scheme with the secret of this endpoint.")

// take records what a signed webhook says, and returns what became of it.
func (p *psp) take(c *call, body []byte) (outcome string, err error) {
	var e pspEvent
	if json.Unmarshal(body, &e) != nil {
		return "malformed", errMalformedEvent
	}
	kind, state, code := resultOf(e.Type)
	if state == "" {
		return "ignored", nil
	}

	var o pspObject
	if json.Unmarshal(e.Data.Object, &o) != nil {
		return "malformed", errMalformedEvent
	}
	operation, err := uuid.Parse(o.Metadata.OperationID)
	if err != nil { // another program uses the PSP's account as well
		return "unknown", nil
	}
	// Without its amount it would be recorded without a look at that, without its id it could not be
	// refunded.
	if state == payments.Succeeded && (o.Amount == 0 || o.ID == "") {
		return "malformed", errMalformedEvent
	}

	recorded, err := p.record(c.Context(), payments.Result{
		OperationID: operation, Kind: kind, State: state, Code: code, Reference: o.ID,
		AmountMinor: o.Amount, Currency: strings.ToUpper(o.Currency),
	})
	if err != nil {
		return "failed", err
	}
	return p.outcome(c, e.Type, o, recorded)
}

var errMalformedEvent = refuse("webhook-malformed", "The body must be an event in JSON about a charge "+
	"or a refund.")

// resultOf returns the result that an event of this type is about. It is empty if there is none, as in
// charge.created, after which another event comes.
func resultOf(
	eventType string,
) (kind payments.OperationKind, state payments.OperationState, code payments.Code) {
	switch eventType {
	case "charge.succeeded":
		return payments.Charge, payments.Succeeded, ""
	case "refund.succeeded":
		return payments.RefundCharge, payments.Succeeded, ""
	case "charge.declined":
		return payments.Charge, payments.OperationDeclined, payments.CardDeclined
	}
	return "", "", ""
}

// outcome turns what was recorded into what the webhook became.
func (p *psp) outcome(
	c *call, eventType string, o pspObject, recorded payments.Recorded,
) (outcome string, err error) {
	switch recorded {
	case payments.Applied:
		return "applied", nil
	case payments.Repeated:
		return "repeated", nil
	case payments.NoOperation:
		// Another program may use the PSP's account. After a restore it is a charge that was lost here.
		p.log.WarnContext(c.Context(), "the PSP's webhook names an operation that is not there",
			"event_type", eventType, "operation_id", o.Metadata.OperationID, "reference", o.ID,
			"request_id", c.id)
		return "unknown", nil
	case payments.Locked:
		return "failed", refuse("unavailable",
			"Nothing was done: the payment is locked. Send the webhook again later.").later()
	case payments.Unbookable:
		outcome = "unbookable"
	case payments.Conflict:
		outcome = "conflict"
	default:
		return "failed", fmt.Errorf("record a result of the PSP: unexpected outcome %d", recorded)
	}

	// To send it again is of no use: the operation waits for an operator.
	p.log.ErrorContext(c.Context(), "the PSP's webhook contradicts the books; an operator is needed",
		"outcome", outcome, "event_type", eventType, "operation_id", o.Metadata.OperationID,
		"payment_id", o.Metadata.PaymentID, "reference", o.ID,
		"amount_minor", o.Amount, "currency", o.Currency, "request_id", c.id)
	return outcome, nil
}
