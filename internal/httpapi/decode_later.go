package httpapi

import (
	"encoding/json"
	"fmt"

	"github.com/oncepay/oncepay/internal/payments"
)

func decodeCapture(target payments.Target, body []byte) (payments.Command, []byte, error) {
	f, err := newFields(body)
	if err != nil {
		return nil, nil, err
	}

	c := payments.CapturePayment{Target: target, AmountMinor: f.optionalAmount("amount_minor")}
	if err := f.err(); err != nil {
		return nil, nil, err
	}

	// All of it and the amount that this happens to be are two requests: we do not look it up.
	canonical, err := json.Marshal(struct {
		AmountMinor int64 `json:"amount_minor,omitempty"`
	}{c.AmountMinor})
	if err != nil {
		return nil, nil, fmt.Errorf("encode capture for its fingerprint: %w", err)
	}
	return c, canonical, nil
}

func decodeCancel(target payments.Target, body []byte) (payments.Command, []byte, error) {
	f, err := newFields(body)
	if err != nil {
		return nil, nil, err
	}
	if err := f.err(); err != nil {
		return nil, nil, err
	}
	return payments.CancelPayment{Target: target}, []byte("{}"), nil
}

func decodeRefund(target payments.Target, body []byte) (payments.Command, []byte, error) {
	f, err := newFields(body)
	if err != nil {
		return nil, nil, err
	}

	c := payments.RefundPayment{
		Target:      target,
		AmountMinor: f.optionalAmount("amount_minor"),
		Reason:      f.text("reason", 500, true),
		Metadata:    f.metadata("metadata"),
	}
	if err := f.err(); err != nil {
		return nil, nil, err
	}

	canonical, err := json.Marshal(struct {
		AmountMinor int64             `json:"amount_minor,omitempty"`
		Reason      string            `json:"reason,omitempty"`
		Metadata    map[string]string `json:"metadata,omitempty"`
	}{c.AmountMinor, c.Reason, c.Metadata})
	if err != nil {
		return nil, nil, fmt.Errorf("encode refund for its fingerprint: %w", err)
	}
	return c, canonical, nil
}
