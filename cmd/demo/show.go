package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// show sends the load, kills when asked to, and prints a line a second, until soft ends, the demo's time is over or all kills of
// -check are done, and every request has its answer.
func (d *demo) show(soft, hard context.Context, l *load, v view) error {
	sending, stop := context.WithCancel(soft)
	defer stop()
	if d.length > 0 {
		sending, stop = context.WithTimeout(sending, d.length)
		defer stop()
	}
	sent, killed := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(sent)
		l.run(sending, hard, d.rate)
	}()
	go func() { killed <- d.killInTurn(sending, hard, l) }()

	err := d.watch(sending, hard, l, v, killed)
	stop()
	<-sent
	err = errors.Join(err, <-killed) // a program that was killed is running again
	if err == nil && d.check && soft.Err() != nil {
		err = errors.New("interrupted before each program was killed once")
	}
	return err
}

// watch returns when soft ends, when a program has failed, and when all kills of -check are done.
func (d *demo) watch(soft, hard context.Context, l *load, v view, killed chan error) error {
	line := time.NewTicker(time.Second)
	defer line.Stop()
	first := l.first
	before, err := v.count(hard)
	if err != nil {
		return err
	}
	for {
		select {
		case <-soft.Done():
			return nil
		case err := <-d.stack.failed():
			return err
		case err := <-killed:
			killed <- nil // for show
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
			c, err := v.count(hard)
			if err != nil {
				return err
			}
			d.say("%5d payments/s  %d in all, %d replays, %d refused  backlog %d  lag %d  consumed %d",
				c.payments-before.payments, c.payments, l.history.replays.Load(), l.history.refused.Load(), c.backlog, c.lag(), c.consumed)
			before = c
		}
	}
}

func (d *demo) printCurl() {
	curl := func(amount int64) string {
		body, _ := json.Marshal(payment{amount, "USD", d.visitor.Accounts[0].ID, d.visitor.Accounts[1].ID}) // plain: cannot fail
		return fmt.Sprintf("curl -i %s/api/v1/payments -H 'Authorization: Bearer %s' -H 'Idempotency-Key: my-first' -H 'Content-Type: application/json' -d '%s'",
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

Ctrl-C stops the requests and counts.

`, curl(2500), curl(2500), curl(9900))
}
