package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// traffic sends one request at a time: mostly new payments, some repeats, some keys used for another payment.
type traffic struct {
	api  string
	seed seed

	sent, replays, refused, failed int
}

// body of a payment from one of the two accounts to the other.
func (t *traffic) body(n, amount int) string {
	side := (n + n/10) % 2 // of ten requests one account pays more often: the next ten it is the other
	from, to := t.seed.Accounts[side].ID, t.seed.Accounts[1-side].ID
	return fmt.Sprintf(`{"amount_minor":%d,"currency":"USD","source_account":"%s","destination_account":"%s"}`, amount, from, to)
}

// next sends request n.
func (t *traffic) next(ctx context.Context, n int) {
	switch {
	case n%10 == 7: // a client that repeats: it gets the first answer again
		t.post(ctx, n-1, 100)
	case n%10 == 9: // a client that uses a key twice: refused
		t.post(ctx, n-3, 200)
	default:
		t.post(ctx, n, 100)
	}
}

func (t *traffic) post(ctx context.Context, n, amount int) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, t.api+"/api/v1/payments", strings.NewReader(t.body(n, amount)))
	if err != nil {
		t.failed++
		return
	}
	request.Header.Set("Authorization", "Bearer "+t.seed.Token)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", fmt.Sprintf("demo-%d", n))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		if ctx.Err() == nil {
			t.failed++
		}
		return
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body) // so that the connection is used again
	t.sent++
	switch {
	case response.Header.Get("Idempotent-Replayed") == "true":
		t.replays++
	case response.StatusCode == http.StatusUnprocessableEntity:
		t.refused++
	case response.StatusCode != http.StatusCreated:
		t.failed++
	}
}
