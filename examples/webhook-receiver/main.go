// Command webhook-receiver takes webhooks: it verifies each, and acts on each event once.
//
//	WEBHOOK_SECRET=whsec_… webhook-receiver
//
// It keeps the ids that it has seen in memory, so that it can be read without a database. They are gone
// with the process, and an event whose answer was lost then acts again. A receiver whose effect is in a
// database keeps them there: INSERT INTO seen … ON CONFLICT DO NOTHING in the transaction of the effect,
// and 200 after its COMMIT.
package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// event is the body of a webhook. The data of one of a payment is the payment.
type event struct {
	Type string          `json:"type"`
	Data json.RawMessage `json:"data"`
}

// receiver calls act for each event, once. An event that act fails for comes again.
type receiver struct {
	verifier *standardwebhooks.Webhook
	act      func(event) error

	mu   sync.Mutex
	seen map[string]bool // ids of events that were acted on
}

func (rc *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// The signature is of the bytes as they were sent, so read them before any JSON.
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		http.Error(w, "cannot read the body", http.StatusBadRequest)
		return
	}

	// This also refuses what is older than five minutes: a captured call cannot be replayed later.
	var e event
	if rc.verifier.Verify(body, r.Header) != nil || json.Unmarshal(body, &e) != nil {
		http.Error(w, "not signed with our secret", http.StatusUnauthorized)
		return
	}

	// One at a time: two deliveries of one event at once must not both act.
	rc.mu.Lock()
	defer rc.mu.Unlock()
	id := r.Header.Get(standardwebhooks.HeaderWebhookID)
	if rc.seen[id] {
		return // 200: otherwise it comes again
	}
	if err := rc.act(e); err != nil {
		http.Error(w, "later, please", http.StatusServiceUnavailable)
		return
	}
	rc.seen[id] = true
}

func main() {
	verifier, err := standardwebhooks.NewWebhook(os.Getenv("WEBHOOK_SECRET"))
	if err != nil || os.Getenv("WEBHOOK_SECRET") == "" {
		fmt.Fprintln(os.Stderr, "set WEBHOOK_SECRET to the secret that was shown when the endpoint was made")
		os.Exit(1)
	}
	show := func(e event) error { _, err := fmt.Println(e.Type, string(e.Data)); return err }
	address := cmp.Or(os.Getenv("HTTP_ADDR"), "127.0.0.1:8090")
	err = http.ListenAndServe(address, &receiver{verifier: verifier, act: show, seen: map[string]bool{}})
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
