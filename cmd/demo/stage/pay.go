package stage

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/cmd/demo/page"
	"github.com/oncepay/oncepay/internal/client"
)

const (
	paymentsPath = "/api/v1/payments"

	// keyPrefix begins the keys of the page: the proxy finds its transactions by it.
	keyPrefix = "page-"

	amount = 2500

	// payMax is what a visitor waits for. Afterwards the outcome is unknown, and a repeat finds it.
	payMax = 12 * time.Second
)

// order is a payment as the visitor asked for it.
type order struct {
	key  string
	body map[string]any
}

// made is what the API says of a payment.
type made struct {
	ID     uuid.UUID `json:"id"`
	Status string    `json:"status"`
}

// newOrder is a payment between two accounts of the visitor or, with a token, by card.
func (s *Stage) newOrder(token string) order {
	body := map[string]any{
		"amount_minor": amount, "currency": "USD", "destination_account": s.Visitor.Accounts[1].ID,
	}
	if token != "" {
		body["payment_method"] = map[string]string{"type": "card", "token": token}
	} else {
		body["source_account"] = s.Visitor.Accounts[0].ID
	}
	return order{keyPrefix + uuid.NewString(), body}
}

// other is another request under the same key.
func (o order) other(more int) order {
	body := map[string]any{}
	for k, v := range o.body {
		body[k] = v
	}
	body["amount_minor"] = amount + more
	return order{o.key, body}
}

func (s *Stage) post(ctx context.Context, o order) (client.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, payMax)
	defer cancel()

	a, err := s.visitor.Post(ctx, paymentsPath, o.key, o.body)
	if err != nil {
		return a, fmt.Errorf("no answer within %s, so the outcome is unknown: repeat it", payMax)
	}
	return a, nil
}

// asked is the visitor's last order.
type asked struct {
	mu    sync.Mutex
	order order
}

// pay pays by card, which passes everything that the page shows.
func (s *Stage) pay(ctx context.Context) (string, error) {
	o := s.newOrder("tok_visa")
	s.asked.mu.Lock()
	s.asked.order = o
	s.asked.mu.Unlock()

	return s.say(s.payAndShow(ctx, o))("paid 25.00 USD by card")
}

// payAndShow makes the payment the one that the page shows.
func (s *Stage) payAndShow(ctx context.Context, o order) (client.Answer, error) {
	var floor int64
	if err := s.db.QueryRow(ctx, `SELECT coalesce(max(id), 0) FROM outbox_events`).Scan(&floor); err != nil {
		return client.Answer{}, fmt.Errorf("read the outbox: %w", err)
	}

	lost, _ := s.Service.CommitReplies()
	a, err := s.post(ctx, o)
	if now, _ := s.Service.CommitReplies(); now > lost {
		s.Timeline.Add(page.Fault, "the reply to the COMMIT of %s was lost", o.key)
	}
	if err != nil {
		return a, err
	}

	var m made
	if json.Unmarshal(a.Body, &m) == nil && a.Status == http.StatusCreated {
		s.last.set(m.ID, floor)
	}
	return a, nil
}

// repeat sends the last payment again, or another one under its key.
func (s *Stage) repeat(ctx context.Context, more int) (string, error) {
	s.asked.mu.Lock()
	o := s.asked.order
	s.asked.mu.Unlock()

	if o.key == "" {
		return "", page.Refused("nothing was paid from this page yet: pay first")
	}
	if more == 0 {
		return s.say(s.payAndShow(ctx, o))("repeated the payment under its key")
	}
	return s.say(s.post(ctx, o.other(more)))("sent another amount under the same key")
}

// say puts an answer on the timeline and into the page's words.
func (s *Stage) say(a client.Answer, err error) func(what string) (string, error) {
	return func(what string) (string, error) {
		if err != nil {
			s.Timeline.Add(page.Action, "%s: %v", what, err)
			return "", err
		}
		text := words(a)
		s.Timeline.Add(page.Action, "%s: %s", what, text)
		return text, nil
	}
}

// words are an answer in one line.
func words(a client.Answer) string {
	text := fmt.Sprintf("%d %s", a.Status, http.StatusText(a.Status))
	var m made
	switch {
	case a.Status >= 400:
		return fmt.Sprintf("%s: %s", text, a.Problem().Code)
	case json.Unmarshal(a.Body, &m) == nil:
		text += fmt.Sprintf(": payment %s, %s", m.ID, m.Status)
	}
	if a.Replayed() {
		text += ", Idempotent-Replayed: true"
	}
	return text
}

// hundred sends a hundred payments at once.
func (s *Stage) hundred(ctx context.Context) (string, error) {
	took, err := s.payMany(ctx, 100, "")
	if err != nil {
		return "", err
	}

	slices.Sort(took)
	text := fmt.Sprintf("100 × 201 Created: the first after %s, the last after %s",
		round(took[0]), round(took[len(took)-1]))
	s.Timeline.Add(page.Action, "a hundred payments at once: %s", text)
	return text, nil
}

// payMany pays n times at once and returns how long each took. One that is refused is an error.
func (s *Stage) payMany(ctx context.Context, n int, token string) ([]time.Duration, error) {
	took, errs := make([]time.Duration, n), make([]error, n)
	began := time.Now()

	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			a, err := s.post(ctx, s.newOrder(token))
			if err == nil && a.Status != http.StatusCreated {
				err = fmt.Errorf("a payment was answered %s", words(a))
			}
			took[i], errs[i] = time.Since(began), err
		})
	}
	all.Wait()

	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return took, nil
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
