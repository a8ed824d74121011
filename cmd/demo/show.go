package main

import (
	"context"
	"errors"
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

	sent, killed := make(chan struct{}), make(chan error, 1)

	go func() {
		defer close(sent)
		l.Run(sending, hard, d.rate)
	}()
	go func() { killed <- d.killInTurn(sending, hard, l) }()

	err := d.watch(sending, hard, l, v, killed)

	// Stop sending, and wait for the answers that are still to come. What a visitor has broken is in
	// working order first, or they would not come.
	stop()
	if d.stage != nil {
		d.stage.End(hard)
	}
	if err != nil {
		giveUp()
	}
	<-sent

	// By now a program that was killed is running again.
	if killErr := <-killed; err == nil {
		err = killErr
	}

	if err == nil && d.check && soft.Err() != nil {
		err = errors.New("interrupted before all kills were done")
	}
	return err
}

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
		case err := <-d.stack.Failed():
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

			rate := float64(c.Payments-before.Payments) / began.Sub(at).Seconds()
			d.sayCounts(rows, rate, c, l.History)
			rows++

			// Counting must not slow down what it counts: give it at most a twentieth of the time.
			before, at = c, began
			line.Reset(max(time.Second, 20*time.Since(began)))
		}
	}
}
