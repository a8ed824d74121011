package psp

import (
	"context"
	"errors"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/oncepay/oncepay/internal/payments"
)

const (
	// With one call in twenty lost, ten in a row are lost once in 10 billion calls. A provider that
	// is down loses ten at once.
	failuresToOpen = 10

	// How long to leave the provider alone before the next probe.
	openFor = 5 * time.Second
)

// Breaker is a Provider that stops calling one that is down.
type Breaker struct {
	provider Provider
	circuit  *gobreaker.CircuitBreaker[Answer]
}

// NewBreaker returns a breaker around p. onChange is called with each new state ("closed",
// "half-open", "open"), under a lock: it must not call the breaker.
func NewBreaker(p Provider, onChange func(state string)) *Breaker {
	return &Breaker{p, gobreaker.NewCircuitBreaker[Answer](gobreaker.Settings{
		MaxRequests: 1, // of probes at a time
		Timeout:     openFor,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.ConsecutiveFailures >= failuresToOpen
		},
		OnStateChange: func(_ string, _, to gobreaker.State) { onChange(to.String()) },
	})}
}

// State returns "closed", "half-open" or "open".
func (b *Breaker) State() string { return b.circuit.State().String() }

// Room returns how many calls the breaker lets through at the moment, at most limit. Claim no more:
// what is claimed counts as tried.
func (b *Breaker) Room(limit int) int {
	switch b.circuit.State() {
	case gobreaker.StateOpen:
		return 0
	case gobreaker.StateHalfOpen:
		probes := int(b.circuit.Counts().Requests)
		return max(0, min(limit, 1-probes))
	}
	return limit
}

// Charge implements Provider.
func (b *Breaker) Charge(ctx context.Context, op payments.Operation) Answer {
	return b.call(func() Answer { return b.provider.Charge(ctx, op) })
}

// Refund implements Provider.
func (b *Breaker) Refund(ctx context.Context, op payments.Operation) Answer {
	return b.call(func() Answer { return b.provider.Refund(ctx, op) })
}

// Find implements Provider.
func (b *Breaker) Find(ctx context.Context, op payments.Operation) Answer {
	return b.call(func() Answer { return b.provider.Find(ctx, op) })
}

// List implements Provider. It is for people, who may try, so it passes the breaker by.
func (b *Breaker) List(
	ctx context.Context, kind payments.OperationKind, after string,
) ([]Entry, bool, error) {
	return b.provider.List(ctx, kind, after)
}

var errDown = errors.New("the provider is down")

func (b *Breaker) call(f func() Answer) Answer {
	a, err := b.circuit.Execute(func() (Answer, error) {
		a := f()
		if a.Outcome.down() {
			return a, errDown
		}
		return a, nil
	})
	if err != nil && !errors.Is(err, errDown) {
		return Answer{Outcome: BreakerOpen, Detail: "not sent: " + oneLine(err.Error())}
	}
	return a
}
