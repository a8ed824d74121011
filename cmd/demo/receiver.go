package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/oncepay/oncepay/internal/client"
	"github.com/oncepay/oncepay/internal/traffic"
)

// receiver is a customer's program that takes the webhooks of the demo's tenant.
type receiver struct {
	server   *http.Server
	address  string
	mu       sync.Mutex
	verifier *standardwebhooks.Webhook
	since    time.Time      // when the endpoint was made
	received map[string]int // by event: its place among the first deliveries
	forged   int64
}

func newReceiver() (*receiver, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the webhook receiver: %w", err)
	}
	r := &receiver{address: l.Addr().String(), received: map[string]int{}}
	r.server = &http.Server{Handler: r, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = r.server.Serve(l) }() // close ends it
	return r, nil
}

func (r *receiver) close() { _ = r.server.Close() }

// subscribe makes the endpoint, as the shop.
func (r *receiver) subscribe(ctx context.Context, api string, shop traffic.Seed) error {
	c := client.Client{URL: api, Token: shop.Token}
	a, err := c.Post(ctx, "/api/v1/webhook-endpoints", "receiver-"+uuid.NewString(),
		map[string]string{"url": "http://" + r.address + "/"})
	if err != nil {
		return err
	}

	var made struct {
		Secret    string    `json:"secret"`
		CreatedAt time.Time `json:"created_at"`
	}
	if err := json.Unmarshal(a.Body, &made); err != nil || a.Status != http.StatusCreated {
		return errors.Join(fmt.Errorf("make the webhook endpoint: %d %s", a.Status, a.Body), err)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.since = made.CreatedAt
	r.verifier, err = standardwebhooks.NewWebhook(made.Secret)
	return err
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, request.Body, 1<<20))
	if err != nil {
		http.Error(w, "cannot read the body", http.StatusBadRequest)
		return
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.verifier.Verify(body, request.Header) != nil {
		r.forged++
		http.Error(w, "not signed with our secret", http.StatusUnauthorized)
		return
	}
	id := request.Header.Get(standardwebhooks.HeaderWebhookID)
	if _, again := r.received[id]; !again {
		r.received[id] = len(r.received)
	}
}

// place returns an event's among the first deliveries.
func (r *receiver) place(event string) (place int, came bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	place, came = r.received[event]
	return place, came
}

// What the endpoint must have got, each payment's events in their order.
const expectedWebhooks = `
SELECT o.event_id::text, o.aggregate_id
FROM outbox_events o JOIN payments p ON p.id::text = o.aggregate_id
WHERE o.aggregate_type = 'payments' AND o.created_at > $1
  AND p.tenant_id = (SELECT tenant_id FROM clients WHERE id = $2)
ORDER BY o.aggregate_id, o.aggregate_version`

// webhookCount is what the receiver got, compared with the outbox.
type webhookCount struct{ expected, lost, outOfOrder int64 }

func (r *receiver) count(
	ctx context.Context, db *pgxpool.Pool, shop traffic.Seed,
) (n webhookCount, err error) {
	rows, err := db.Query(ctx, expectedWebhooks, r.since, shop.ClientID)
	if err != nil {
		return n, fmt.Errorf("read the events of webhooks: %w", err)
	}
	defer rows.Close()

	r.mu.Lock()
	defer r.mu.Unlock()
	for payment, last := "", 0; rows.Next(); {
		var event, about string
		if err := rows.Scan(&event, &about); err != nil {
			return n, fmt.Errorf("read the events of webhooks: %w", err)
		}
		n.expected++

		place, got := r.received[event]
		switch {
		case !got:
			n.lost++
			continue
		case about == payment && place < last:
			n.outOfOrder++
		}
		payment, last = about, place
	}
	return n, rows.Err()
}

// webhooksMax is longer than the first pauses of the sender after a failure.
const webhooksMax = 90 * time.Second

// await waits until all have come, and returns what has not by then.
func (r *receiver) await(
	ctx context.Context, db *pgxpool.Pool, shop traffic.Seed,
) (n webhookCount, err error) {
	for deadline := time.Now().Add(webhooksMax); ; traffic.Pause(ctx, 500*time.Millisecond) {
		n, err = r.count(ctx, db, shop)
		if err != nil || n.lost == 0 || ctx.Err() != nil || time.Now().After(deadline) {
			return n, err
		}
	}
}
