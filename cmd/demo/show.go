package main

import (
	"context"
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

// legend explains header, row what is below it.
const (
	legend = `
Seven in ten requests are new payments. The others are what clients do as well:
repeat, hang up, send one key twice, pay without money.

  made       payments, declined ones included
  replayed   repeats that got the stored answer
  refused    a key used for something else, too little money, no such account
  backlog    events in the outbox that the relay has not sent yet
  lag        events on Kafka that the consumer has not processed yet
  processed  events that took effect in the consumer's tables

Each payment has one event: first in backlog, then in lag, then in processed.

`
	header = "       payments/s      made  replayed   refused   backlog      lag  processed\n"
	row    = "%10.0f %9d %9d %9d %9d %8d %10d"

	rowsPerHeader = 20
)

const commands = `
Paste this into another terminal, in this folder:

export ONCEPAY_URL=%s
export ONCEPAY_TOKEN=\
%s
export DATABASE_URL=\
'%s'
pay() {
  curl -i -w '\n' $ONCEPAY_URL/api/v1/payments \
    -H "Authorization: Bearer $ONCEPAY_TOKEN" -H 'Idempotency-Key: my-first' \
    -H 'Content-Type: application/json' -d '{
      "source_account": "%s",
      "destination_account": "%s",
      "currency": "USD", "amount_minor": '$1'}'
}

pay 2500                           # 201: a payment of 25.00 USD
pay 2500                           # 201: the same answer, and
                                   # Idempotent-Replayed: true
pay 9900                           # 422: the key belongs to another payment
go run ./cmd/oncepay key my-first  # what is stored under the key
go run ./cmd/oncepay outbox        # what waits for the relay

Ctrl-C stops the requests and counts.
`

// watch prints a line a second. It returns when soft ends, a program fails, or all kills of -check
// are done.
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

	for rows := 0; ; {
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
			if !d.check {
				d.printCommands()
			}
		case <-line.C:
			began := time.Now()
			c, err := v.Count(hard)
			if err != nil {
				return err
			}

			if rows == 0 {
				d.print(legend)
			}
			if rows%rowsPerHeader == 0 {
				d.print(header)
			}
			rows++

			rate := float64(c.Payments-before.Payments) / began.Sub(at).Seconds()
			d.say(row, rate, c.Payments, l.History.Replays.Load(), l.History.Refused.Load(),
				c.Backlog, c.Lag(), c.Consumed)

			// Counting must not slow down what it counts: give it at most a twentieth of the time.
			before, at = c, began
			line.Reset(max(time.Second, 20*time.Since(began)))
		}
	}
}

// printCommands prints what a visitor can type. The lines fit into 80 columns, and a shell gets
// them as they are.
func (d *demo) printCommands() {
	d.print(fmt.Sprintf(commands, d.stack.url(), d.visitor.Token, d.stack.owner(),
		d.visitor.Accounts[0].ID, d.visitor.Accounts[1].ID))
}
