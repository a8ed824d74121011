package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/client"
)

// keysKept is how long after its first try a key is still sent. The service keeps the answer to a key
// for 24 h or more (its IDEMPOTENCY_RETENTION); after that a repeat would charge again.
const keysKept = 20 * time.Hour

// refundPause is how long the shop has to find the money for a refund that was declined.
const refundPause = time.Minute

var (
	errNotYet      = errors.New("still processing")
	errAskOperator = errors.New("this needs an operator")
)

// charge sends the charge, again and again under the same key until the answer is certain. Only the
// very first claim knows that nothing was sent before it.
func charge(ctx context.Context, w *worker, o order, key string) (move, error) {
	if o.CancelRequested && o.Tries == 1 {
		return move{to: Unpaid, reason: "canceled"}, nil
	}

	type method struct {
		Type  string `json:"type"`
		Token string `json:"token"`
	}
	request := struct {
		AmountMinor        int64      `json:"amount_minor"`
		Currency           string     `json:"currency"`
		SourceAccount      *uuid.UUID `json:"source_account,omitempty"`
		PaymentMethod      *method    `json:"payment_method,omitempty"`
		DestinationAccount uuid.UUID  `json:"destination_account"`
		ClientReference    string     `json:"client_reference"`
	}{
		AmountMinor: o.AmountMinor, Currency: o.Currency, SourceAccount: o.Account,
		DestinationAccount: o.PayTo, ClientReference: o.ID.String(),
	}
	if o.Card != nil {
		request.PaymentMethod = &method{"card", *o.Card}
	}

	a, err := w.post(ctx, o, key, "/api/v1/payments", request)
	switch {
	case err != nil:
		return move{}, err
	case a.Status < 400:
		return moveCharged(a, nil)
	}
	// It is stored under the key, so no repeat will be charged either.
	return move{to: Unpaid, reason: a.Problem().Code}, nil
}

// awaitCharge looks whether a charge has ended.
func awaitCharge(ctx context.Context, w *worker, o order, _ string) (move, error) {
	a, err := w.get(ctx, "/api/v1/payments/"+o.PaymentID.String())
	if err != nil {
		return move{}, err
	}

	m, err := moveCharged(a, o.PaymentID)
	if err == nil && m.to == Processing {
		err = errNotYet
	}
	return m, err
}

// moveCharged reads a payment, which must be the one of that id if there is one.
func moveCharged(a client.Answer, id *uuid.UUID) (move, error) {
	p, err := read(a, id)
	if err != nil {
		return move{}, err
	}

	switch p.Status {
	case "completed":
		return move{to: Charged, payment: &p.ID}, nil
	case "processing":
		return move{to: Processing, payment: &p.ID}, nil
	case "declined", "failed":
		return move{to: Unpaid, payment: &p.ID, reason: p.DeclineCode}, nil
	}
	return move{}, fmt.Errorf("%w: payment %s is %s", errAskOperator, p.ID, p.Status)
}

// refund gives all the money back. An order that was charged stays here until that is certain.
func refund(ctx context.Context, w *worker, o order, key string) (move, error) {
	request := map[string]any{"amount_minor": o.AmountMinor, "reason": "order canceled"}
	path := "/api/v1/payments/" + o.PaymentID.String() + "/refunds"

	a, err := w.post(ctx, o, key, path, request)
	switch {
	case err != nil:
		return move{}, err
	case a.Status < 400:
		return moveRefunded(a, nil)
	case a.Status == http.StatusPaymentRequired: // the shop has spent the money
		return declinedRefund(a.Problem().Code), nil
	}
	return move{}, fmt.Errorf("%w: the refund was answered %d %s",
		errAskOperator, a.Status, a.Problem().Code)
}

// awaitRefund looks whether a refund has ended.
func awaitRefund(ctx context.Context, w *worker, o order, _ string) (move, error) {
	a, err := w.get(ctx, "/api/v1/refunds/"+o.RefundID.String())
	if err != nil {
		return move{}, err
	}

	m, err := moveRefunded(a, o.RefundID)
	if err == nil && m.to == Refunding {
		err = errNotYet
	}
	return m, err
}

func moveRefunded(a client.Answer, id *uuid.UUID) (move, error) {
	r, err := read(a, id)
	if err != nil {
		return move{}, err
	}

	switch r.Status {
	case "completed":
		return move{to: Refunded, refund: &r.ID}, nil
	case "processing":
		return move{to: Refunding, refund: &r.ID}, nil
	case "declined", "failed":
		return declinedRefund(r.DeclineCode), nil
	}
	return move{}, fmt.Errorf("%w: refund %s is %s", errAskOperator, r.ID, r.Status)
}

// declinedRefund is certain: nothing went back. So the next try is a new intention, under a new key
// that is committed before it is used.
func declinedRefund(code string) move {
	return move{to: RefundDue, reason: "refund declined: " + code, declined: 1, pause: refundPause}
}

// post sends a request under the step's key, and returns an answer only if it is certain.
func (w *worker) post(
	ctx context.Context, o order, key, path string, request any,
) (client.Answer, error) {
	if o.FirstTriedAt.Before(time.Now().Add(-keysKept)) {
		return client.Answer{}, fmt.Errorf("%w: key %s may be forgotten, and a repeat charge again",
			errAskOperator, key)
	}

	a, err := w.api.Post(ctx, path, key, request)
	code := a.Problem().Code
	switch {
	case err != nil:
		return a, err
	case code == "idempotency-key-reused":
		return a, fmt.Errorf("%w: key %s was used for another request", errAskOperator, key)
	case !a.Settled():
		// Post returns a refusal of its own first attempt. It may not be the order's first: a worker
		// may have died with a charge on its way.
		return a, fmt.Errorf("answer %d %s settles nothing", a.Status, code)
	}
	return a, nil
}

func (w *worker) get(ctx context.Context, path string) (client.Answer, error) {
	a, err := w.api.Get(ctx, path)
	if err == nil && a.Status != http.StatusOK {
		err = fmt.Errorf("answer %d %s", a.Status, a.Problem().Code)
	}
	return a, err
}

// resource is what payments and refunds have in common.
type resource struct {
	ID          uuid.UUID `json:"id"`
	Status      string    `json:"status"`
	DeclineCode string    `json:"decline_code"`
}

func read(a client.Answer, id *uuid.UUID) (r resource, err error) {
	if err := json.Unmarshal(a.Body, &r); err != nil {
		return r, fmt.Errorf("read answer: %w", err)
	}
	if r.ID == uuid.Nil || id != nil && r.ID != *id {
		return r, fmt.Errorf("the answer is about %s", r.ID)
	}
	return r, nil
}
