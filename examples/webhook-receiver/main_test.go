package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// TestReceiver runs the receiver and calls it as the sender would, and as others might.
func TestReceiver(t *testing.T) {
	t.Parallel()
	verifier, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	acted, busy := []string{}, true
	s := httptest.NewServer(&receiver{verifier: verifier, seen: map[string]bool{}, act: func(e event) error {
		if e.Type == "payment.failed" && busy {
			busy = false
			return errors.New("busy")
		}
		acted = append(acted, e.Type+" "+string(e.Data))
		return nil
	}})
	t.Cleanup(s.Close)

	now := time.Now()
	for _, c := range []struct {
		name, id, signed, sent string
		at                     time.Time
		want                   int
	}{
		{"an event", "1", `{"type":"payment.completed","data":{"id":"a"}}`, "", now, 200},
		{"the same again", "1", `{"type":"payment.completed","data":{"id":"a"}}`, "", now, 200},
		{"another", "2", `{"type":"refund.completed","data":{"id":"b"}}`, "", now, 200},
		{"it cannot act", "3", `{"type":"payment.failed","data":{}}`, "", now, 503},
		{"it can", "3", `{"type":"payment.failed","data":{}}`, "", now, 200},
		{"a changed body", "4", `{"type":"payment.completed","data":{}}`, `{"type":"payment.completed","data":1}`, now, 401},
		{"a captured call", "5", `{"type":"payment.completed","data":{}}`, "", now.Add(-time.Hour), 401},
		{"no JSON", "6", `{`, "", now, 401},
	} {
		signature, err := verifier.Sign(c.id, c.at, []byte(c.signed))
		if err != nil {
			t.Fatal(err)
		}
		if c.sent == "" {
			c.sent = c.signed
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader(c.sent))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("webhook-id", c.id)
		r.Header.Set("webhook-timestamp", strconv.FormatInt(c.at.Unix(), 10))
		r.Header.Set("webhook-signature", signature)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != c.want {
			t.Errorf("%s: %d, want %d", c.name, response.StatusCode, c.want)
		}
	}
	if got := strings.Join(acted, ", "); got != `payment.completed {"id":"a"}, refund.completed {"id":"b"}, payment.failed {}` {
		t.Errorf("it acted on %s", got)
	}
}
