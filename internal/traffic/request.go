package traffic

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/client"
)

// request is a command as a client sends it and sends it again.
type request struct {
	shop      shop
	path      string
	key       string
	ifVersion int64 // the same whenever the key is
	body      any   // payment or amount
}

const paymentsPath = "/api/v1/payments"

// payment is the body of a new payment.
type payment struct {
	AmountMinor          int64          `json:"amount_minor"`
	Currency             string         `json:"currency"`
	SourceAccount        uuid.UUID      `json:"source_account,omitzero"` // zero: by card
	DestinationAccount   uuid.UUID      `json:"destination_account"`
	PaymentMethod        *paymentMethod `json:"payment_method,omitempty"`
	Capture              string         `json:"capture,omitempty"`
	AuthorizationSeconds int            `json:"authorization_seconds,omitempty"`
}

// paymentMethod is a card.
type paymentMethod struct {
	Type  string `json:"type"`
	Token string `json:"token"`
}

// amount is the body of a capture, a cancel or a refund.
type amount struct {
	AmountMinor int64 `json:"amount_minor,omitempty"` // zero: all
}

// other returns another request under the same key.
func (r request) other() request {
	switch body := r.body.(type) {
	case payment:
		body.AmountMinor++
		r.body = body
	case amount:
		if path, is := strings.CutSuffix(r.path, "/cancel"); is {
			r.path = path + "/capture"
			break
		}
		body.AmountMinor++
		r.body = body
	}
	return r
}

// longestHangUp is about as long as an answer takes under this load.
const longestHangUp = 100 * time.Millisecond

// send sends a request until its outcome is known. One in twenty is cut off first, and one in twenty
// is sent several times at once.
func (c *caller) send(ctx context.Context, r request) (client.Answer, bool) {
	switch rand.IntN(20) {
	case 0:
		// Hang up, often between COMMIT and the answer, and ask again below.
		impatient, hangUp := context.WithTimeout(ctx, rand.N(longestHangUp))
		_, _ = r.shop.PostIf(impatient, r.path, r.key, r.ifVersion, r.body)
		hangUp()
	case 1:
		// The same request three times at once, and another one under its key. One of them is done.
		var wg sync.WaitGroup
		defer wg.Wait()

		for _, r := range []request{r, r, r.other()} {
			wg.Go(func() { c.post(ctx, r) })
		}
	}

	a, known := c.post(ctx, r)
	if known {
		c.earlier = append(c.earlier[max(0, len(c.earlier)-31):], r)
	}
	return a, known
}

func (c *caller) post(ctx context.Context, r request) (client.Answer, bool) {
	a, err := r.shop.PostIf(ctx, r.path, r.key, r.ifVersion, r.body)
	if err == nil && a.Status == http.StatusCreated {
		c.load.once.Do(func() { close(c.load.First) })
	}
	if err != nil {
		c.load.History.Unknown.Add(1)
	}

	return a, err == nil
}
