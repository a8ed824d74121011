package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
)

// cards is a payments service that takes a while: what it is asked for is processing when it answers,
// and at the first look afterwards. Its keys are the real one's.
type cards struct {
	mu      sync.Mutex
	byKey   map[string]string // key → id
	paid    map[string]int    // by client reference
	back    map[string]int64  // refunded, by payment
	orderOf map[string]string // payment → client reference
	looks   map[string]int    // by id
}

func newCards() *cards {
	return &cards{
		byKey: map[string]string{}, paid: map[string]int{}, back: map[string]int64{},
		orderOf: map[string]string{}, looks: map[string]int{},
	}
}

func (c *cards) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if r.Method == http.MethodGet {
		id := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		c.looks[id]++
		status := "processing"
		if c.looks[id] > 1 {
			status = "completed"
		}
		return response(r, http.StatusOK, nil, map[string]string{"id": id, "status": status}), nil
	}

	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var request struct {
		AmountMinor     int64             `json:"amount_minor"`
		ClientReference string            `json:"client_reference"`
		PaymentMethod   map[string]string `json:"payment_method"`
	}
	if err := json.Unmarshal(body, &request); err != nil {
		return nil, err
	}

	key := r.Header.Get("Idempotency-Key")
	id, replayed := c.byKey[key]
	if !replayed {
		id = uuid.NewString()
		c.byKey[key] = id
		if payment, is := strings.CutSuffix(r.URL.Path, "/refunds"); is {
			c.back[payment[strings.LastIndex(payment, "/")+1:]] += request.AmountMinor
		} else if request.PaymentMethod["type"] == "card" && request.PaymentMethod["token"] == "tok_visa" {
			c.paid[request.ClientReference]++
			c.orderOf[id] = request.ClientReference
		}
	}
	stored := map[string]string{"Idempotent-Replayed": map[bool]string{true: "true", false: "false"}[replayed]}
	return response(r, http.StatusCreated, stored, map[string]string{"id": id, "status": "processing"}), nil
}

func (c *cards) payments(_ *testing.T, order uuid.UUID) (paid int, refunded int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for payment, reference := range c.orderOf {
		if reference == order.String() {
			refunded += c.back[payment]
		}
	}
	return c.paid[order.String()], refunded
}

// response makes a response; a problem if its status says so.
func response(r *http.Request, status int, header map[string]string, body any) *http.Response {
	b, _ := json.Marshal(body)
	h := http.Header{"Content-Type": {"application/json"}}
	if status >= 400 {
		h.Set("Content-Type", "application/problem+json")
	}
	for name, value := range header {
		h.Set(name, value)
	}
	return &http.Response{
		StatusCode: status, Header: h, Body: io.NopCloser(bytes.NewReader(b)), Request: r, ProtoMajor: 1, ProtoMinor: 1,
	}
}
