package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/client"
	"github.com/oncepay/oncepay/internal/traffic"
	"github.com/oncepay/oncepay/tools/rig"
)

// pspLoad is the clients of the run.
type pspLoad struct {
	client *client.Client
	to     []uuid.UUID // accounts

	acknowledged, refunds, refused atomic.Int64
	failed                         atomic.Int64 // outcomes that no attempt reported

	mu   sync.Mutex
	paid []charged // those to be refunded
}

type charged struct {
	id uuid.UUID
	at time.Time
}

type cardPayment struct {
	AmountMinor        int64             `json:"amount_minor"`
	Currency           string            `json:"currency"`
	DestinationAccount uuid.UUID         `json:"destination_account"`
	PaymentMethod      map[string]string `json:"payment_method"`
}

func (l *pspLoad) prepare(ctx context.Context, s *storming) error {
	args := append(traffic.SeedArgs("shop"), "--cards")
	seed, err := rig.Seed(ctx, s.dir, s.url("postgres"), args)
	if err != nil {
		return err
	}
	for _, a := range seed.Accounts {
		l.to = append(l.to, a.ID)
	}

	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 200
	l.client = &client.Client{
		URL: "http://" + s.api, Token: seed.Token,
		HTTP: &http.Client{Timeout: 20 * time.Second, Transport: transport},
	}
	return nil
}

// mostUnsettled is how many payments may be processing before the clients wait: on a machine that is
// slower than their rate, they would otherwise queue for longer than the whole run.
const mostUnsettled = 1000

// run sends n payments, rate a second or fewer, and sees each one through.
func (l *pspLoad) run(ctx context.Context, n, rate int, unsettled func(context.Context) int) error {
	var wg sync.WaitGroup
	clients := make(chan struct{}, 100)
	begun := time.Now()
	for i := range n {
		rig.Wait(ctx, begun.Add(time.Duration(i)*time.Second/time.Duration(rate)))
		if ctx.Err() != nil {
			break
		}
		for i%100 == 0 && unsettled(ctx) > mostUnsettled && ctx.Err() == nil {
			traffic.Pause(ctx, 200*time.Millisecond)
		}

		clients <- struct{}{}
		wg.Go(func() {
			defer func() { <-clients }()
			l.pay(ctx, i%10 == 0)
		})
		if i%10 == 5 {
			wg.Go(func() { l.refund(ctx) })
		}
	}
	wg.Wait()

	if failed := l.failed.Load(); failed > 0 {
		return fmt.Errorf("%d requests never had an answer", failed)
	}
	return ctx.Err()
}

func (l *pspLoad) pay(ctx context.Context, refund bool) {
	a, err := l.client.Post(ctx, "/api/v1/payments", orderID(), cardPayment{
		AmountMinor: 1 + rand.Int64N(100_000), Currency: "USD",
		DestinationAccount: l.to[rand.IntN(len(l.to))],
		PaymentMethod:      map[string]string{"type": "card", "token": "tok_visa"},
	})
	var made struct{ ID uuid.UUID }
	if err == nil {
		err = json.Unmarshal(a.Body, &made)
	}
	if err != nil || a.Status != http.StatusCreated {
		l.failed.Add(1)
		return
	}

	l.acknowledged.Add(1)
	if refund {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.paid = append(l.paid, charged{made.ID, time.Now()})
	}
}

// refund gives a part of an older payment back, which may not be completed, or never be.
func (l *pspLoad) refund(ctx context.Context) {
	l.mu.Lock()
	if len(l.paid) == 0 || time.Since(l.paid[0].at) < 2*time.Second {
		l.mu.Unlock()
		return
	}
	p := l.paid[0]
	l.paid = l.paid[1:]
	l.mu.Unlock()

	a, err := l.client.Post(ctx, "/api/v1/payments/"+p.id.String()+"/refunds", orderID(),
		map[string]int64{"amount_minor": 1})
	switch {
	case err != nil:
		l.failed.Add(1)
	case a.Status == http.StatusCreated:
		l.refunds.Add(1)
	default:
		l.refused.Add(1)
	}
}
