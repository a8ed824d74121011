package contract_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

const pspSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

func byCard(amount int64, currency string, destination uuid.UUID) string {
	return fmt.Sprintf(`{"amount_minor":%d,"currency":%q,"payment_method":{"type":"card","token":"tok_visa"},"destination_account":%q}`, amount, currency, destination)
}

func (s *service) record(ctx context.Context, r payments.Result) (payments.Recorded, error) {
	recorded, err := s.processor.Record(ctx, []payments.Result{r})
	if err != nil {
		return 0, err
	}
	return recorded[0], nil
}

// settle records what the PSP made of the payment or refund at location.
func (s *service) settle(t *testing.T, location string, state payments.OperationState) {
	t.Helper()
	recorded, err := s.record(t.Context(), payments.Result{OperationID: s.operation(t, location), State: state})
	if err != nil || recorded != payments.Applied {
		t.Fatal(recorded, err)
	}
}

func (s *service) operation(t *testing.T, location string) (id uuid.UUID) {
	t.Helper()
	about := location[strings.LastIndex(location, "/")+1:]
	err := s.owner.QueryRow(t.Context(), `SELECT id FROM psp_operations WHERE $1::uuid IN (payment_id, refund_id) AND ended_at IS NULL`, about).Scan(&id)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// charged is a payment by card that the PSP has ended, if there is a state.
func (s *service) charged(t *testing.T, amount int64, state payments.OperationState) (location string) {
	t.Helper()
	location = s.do(t, payments.CreatePayment{AmountMinor: amount, Currency: "USD", Card: "tok_visa", DestinationAccount: s.rich}).Response.Location
	if state != "" {
		s.settle(t, location, state)
	}
	return location
}

// happenByCard makes everything happen that has an event only by card.
func (s *service) happenByCard(t *testing.T) {
	t.Helper()
	s.charged(t, 7, payments.OperationDeclined)
	s.charged(t, 7, payments.OperationFailed)
	id, err := uuid.Parse(s.charged(t, 7, payments.Succeeded)[len(paymentsPath)+1:])
	if err != nil {
		t.Fatal(err)
	}
	for _, state := range []payments.OperationState{payments.Succeeded, payments.OperationDeclined, payments.OperationFailed} {
		refund := s.do(t, payments.RefundPayment{Target: payments.Target{PaymentID: id}, AmountMinor: 2})
		s.settle(t, refund.Response.Location, state)
	}
}

// cardOutcomes is what becomes of payments by card and of their refunds.
func (s *service) cardOutcomes(t *testing.T, f *referee) {
	t.Helper()
	valid := byCard(1, "USD", s.rich)
	for _, c := range []call{
		s.post("by card", paymentsPath, "card-1", valid, 201, ""),
		s.post("by card, at once", paymentsPath, "card-2", with(valid, `"capture":"automatic"`), 201, ""),
		s.post("in a currency without cards", paymentsPath, "card-3", byCard(1, "EUR", s.euros), 422, "cards-not-enabled"),
		s.post("to the clearing account", paymentsPath, "card-4", byCard(1, "USD", s.clearing), 422, "same-account"),
		s.post("from the clearing account", paymentsPath, "card-5", payment(1, "USD", s.clearing, s.rich), 403, "funding-forbidden"),
	} {
		f.twice(t, c)
	}
	for _, body := range []string{
		with(payment(1, "USD", s.rich, s.poor), `"payment_method":{"type":"card","token":"tok_visa"}`),
		strings.Replace(valid, `"payment_method":{"type":"card","token":"tok_visa"},`, "", 1),
		with(valid, `"capture":"manual"`),
		strings.Replace(valid, `"card"`, `"cash"`, 1),
		strings.Replace(valid, `{"type":"card","token":"tok_visa"}`, `null`, 1),
		strings.Replace(valid, `tok_visa`, ``, 1),
		strings.Replace(valid, `tok_visa`, `tok visa`, 1),
		strings.Replace(valid, `tok_visa`, strings.Repeat("t", 256), 1),
	} {
		f.judge(t, s.post("by card "+body, paymentsPath, "k1", body, 422, "invalid-field"))
	}
	f.judge(t, s.post("too much of a card", paymentsPath, "k1", strings.Replace(valid, `"token"`, `"cvc":"1","token"`, 1), 422, "unknown-field"))

	// Each is read in each of its states, and waited for.
	wait := func(path string, status int, header ...string) call {
		c := s.get("waiting", path, status, "")
		c.header = map[string]string{"Prefer": "wait=1"}
		if len(header) > 0 {
			c.header["If-None-Match"] = header[0]
		}
		return c
	}
	paid := s.charged(t, 10, "")
	f.judge(t, wait(paid, 200))
	for _, state := range []payments.OperationState{payments.OperationDeclined, payments.OperationFailed} {
		f.judge(t, wait(s.charged(t, 1, state), 200))
	}
	s.settle(t, paid, payments.Succeeded)
	f.judge(t, wait(paid, 200))
	f.judge(t, wait(paid, 200, `"1"`))
	f.judge(t, wait(paid, 304, `"1", W/"2"`))
	for i, state := range []payments.OperationState{payments.Succeeded, payments.OperationDeclined, payments.OperationFailed} {
		asked := s.post("refund by card", paid+"/refunds", fmt.Sprintf("card-refund-%d", i), `{"amount_minor":2}`, 201, "")
		f.twice(t, asked)
		refund := f.judge(t, asked).Header().Get("Location")
		f.judge(t, s.get("refunding", paid, 200, ""))
		f.judge(t, wait(refund, 200))
		s.settle(t, refund, state)
		f.judge(t, wait(refund, 200))
		f.judge(t, s.get("refunded", paid, 200, ""))
	}
	f.judge(t, s.get("refunds", paid+"/refunds", 200, ""))
	for _, status := range []string{"processing", "failed", "declined", "completed"} {
		f.judge(t, s.get(status, paymentsPath+"?status="+status, 200, ""))
	}
	f.judge(t, s.get("the clearing account", accountsPath+"/"+s.clearing.String(), 200, ""))
	f.judge(t, s.get("its entries", accountsPath+"/"+s.clearing.String()+"/entries", 200, ""))
}

// webhook is a delivery of the PSP.
func (s *service) webhook(t *testing.T, name, body string, status int, code string) call {
	t.Helper()
	signer, err := standardwebhooks.NewWebhook(pspSecret)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	signature, err := signer.Sign("evt_1", now, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return call{
		name: name, handler: s, method: http.MethodPost, path: "/webhooks/psp", body: body, status: status, code: code,
		header: map[string]string{"webhook-id": "evt_1", "webhook-timestamp": strconv.FormatInt(now.Unix(), 10), "webhook-signature": signature},
	}
}

func (s *service) webhooks(t *testing.T, f *referee) {
	t.Helper()
	event := func(kind string) string {
		return fmt.Sprintf(`{"id":"evt_1","type":%q,"created":1769851800,"data":{"object":{"id":"ch_1","object":"charge","amount":7,"currency":"usd","status":"succeeded",
			"payment_method":"tok_visa","metadata":{"operation_id":%q,"payment_id":"x"},"created":1769851800,"refunded":0}}}`, kind, s.operation(t, s.charged(t, 7, "")))
	}
	succeeded := event("charge.succeeded")
	for _, c := range []call{
		s.webhook(t, "succeeded", succeeded, 204, ""),
		s.webhook(t, "again", succeeded, 204, ""),
		s.webhook(t, "declined", event("charge.declined"), 204, ""),
		s.webhook(t, "another amount", strings.Replace(event("charge.succeeded"), ":7,", ":8,", 1), 204, ""),
		s.webhook(t, "created", event("charge.created"), 204, ""),
		s.webhook(t, "no event", "{}", 204, ""),
		s.webhook(t, "cut", succeeded[:20], 400, "webhook-malformed"),
		s.webhook(t, "large", strings.Repeat(" ", 64<<10)+succeeded, 413, "body-too-large"),
	} {
		f.judge(t, c)
	}

	query := s.webhook(t, "query", succeeded, 400, "invalid-query")
	query.path += "?x=1"
	xml := s.webhook(t, "another media type", succeeded, 415, "unsupported-media-type")
	xml.header["Content-Type"] = "application/xml"
	slow := s.webhook(t, "slow", "", 408, "request-timeout")
	slow.reader = late{}
	forged := s.webhook(t, "of another body", succeeded, 401, "webhook-signature-invalid")
	forged.body = event("charge.succeeded")
	for _, c := range []call{query, xml, slow, forged} {
		f.judge(t, c)
	}
	for code, err := range map[string]error{"outcome-unknown": idempotency.ErrOutcomeUnknown, "unavailable": context.DeadlineExceeded, "internal": errors.New("unforeseen")} {
		c := s.webhook(t, "Record fails", succeeded, 503, code)
		if code == "internal" {
			c.status = 500
		}
		c.handler = s.with(func(o *httpapi.Options) {
			o.PSP = &httpapi.PSPWebhooks{Secret: pspSecret, Record: func(context.Context, payments.Result) (payments.Recorded, error) { return 0, err }}
		})
		f.judge(t, c)
	}
}
