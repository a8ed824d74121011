package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/oncepay/oncepay/internal/traffic"
)

// show sends the load, kills when asked to, and prints a line a second. It returns once soft has
// ended, the demo's time is over or all kills of -check are done, and every request has its answer.
func (d *demo) show(soft, hard context.Context, l *traffic.Load, v traffic.View) error {
	sending, stop := context.WithCancel(soft)
	defer stop()

	if d.length > 0 {
		sending, stop = context.WithTimeout(sending, d.length)
		defer stop()
	}

	// If a program cannot be restarted, giveUp ends the wait for it.
	hard, giveUp := context.WithCancel(hard)
	defer giveUp()

	sent, moved, killed := make(chan struct{}), make(chan error, 1), make(chan error, 1)

	go func() {
		defer close(sent)
		l.Run(sending, hard, d.rate)
	}()
	go func() {
		moved <- traffic.MoveParcels(sending, hard, d.stack.owner(), d.stack.brokers(), topicPrefix)
	}()
	go func() { killed <- d.killInTurn(sending, hard, l) }()

	err := d.watch(sending, hard, l, v, killed)

	// Stop sending, and wait for the answers that are still to come.
	stop()
	if err != nil {
		giveUp()
	}
	<-sent

	// By now a program that was killed is running again.
	killErr, moveErr := <-killed, <-moved
	if err == nil {
		err = errors.Join(killErr, moveErr)
	}

	if err == nil && d.check && soft.Err() != nil {
		err = errors.New("interrupted before all kills were done")
	}
	return err
}

// watch returns when soft ends, a program fails, or all kills of -check are done.
func (d *demo) watch(
	soft, hard context.Context, l *traffic.Load, v traffic.View, killed chan error,
) error {
	line := time.NewTimer(time.Second)
	defer line.Stop()

	first := l.First
	before, err := v.Count(hard)
	if err != nil {
		return err
	}

	at := time.Now()

	for {
		select {
		case <-soft.Done():
			return nil
		case err := <-d.stack.failed():
			return err
		case err := <-killed:
			killed <- nil // show reads it, too
			if err != nil || d.check {
				return err
			}
			killed = nil
		case <-first:
			first = nil
			d.say("the first payment is made")
			if !d.check {
				d.printCurl()
			}
		case <-line.C:
			began := time.Now()
			c, err := v.Count(hard)
			if err != nil {
				return err
			}

			rate := float64(c.Payments-before.Payments) / began.Sub(at).Seconds()
			d.say(
				"%5.0f payments/s  %d in all, %d replays, %d refused  backlog %d  lag %d  consumed %d",
				rate, c.Payments, l.History.Replays.Load(), l.History.Refused.Load(),
				c.Backlog, c.Lag(), c.Consumed)

			// Counting must not slow down what it counts: give it at most a twentieth of the time.
			before, at = c, began
			line.Reset(max(time.Second, 20*time.Since(began)))
		}
	}
}

func (d *demo) printCurl() {
	curl := func(amount int64) string {
		body, _ := json.Marshal(traffic.Payment{
			AmountMinor: amount, Currency: "USD",
			SourceAccount: d.visitor.Accounts[0].ID, DestinationAccount: d.visitor.Accounts[1].ID,
		}) // a plain struct: cannot fail
		return fmt.Sprintf(
			"curl -i %s/api/v1/payments -H 'Authorization: Bearer %s' -H 'Idempotency-Key: my-first' -H 'Content-Type: application/json' -d '%s'",
			d.stack.url(), d.visitor.Token, body)
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.out, `
Paste these into another terminal.

A payment (201):
%s

Its repeat: the same answer, Idempotent-Replayed: true (201):
%s

The same key with another amount (422):
%s

Or by hand, in this folder (oncepay -h explains it):
export DATABASE_URL='%s' ONCEPAY_URL=%s ONCEPAY_TOKEN=%s
go run ./cmd/oncepay key my-first
go run ./cmd/oncepay outbox

Ctrl-C stops the requests and counts.

`, curl(2500), curl(2500), curl(9900), d.stack.owner(), d.stack.url(), d.visitor.Token)
}
