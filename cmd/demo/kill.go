package main

import (
	"context"
	"fmt"
	"time"

	"github.com/oncepay/oncepay/internal/traffic"
)

const (
	killEvery  = 5 * time.Second
	restartMax = time.Minute
	starts     = 5
)

// leastInFlight is what makes a kill worth something: this many requests were with the API when the program died.
const leastInFlight = 50

// kill is one that was done.
type kill struct {
	program  string
	inFlight int64
}

// killInTurn kills one program after the other and starts each again, with some seconds before, between and after. It returns when
// soft ends; with -check when each was killed once.
func (d *demo) killInTurn(soft, hard context.Context, l *traffic.Load) error {
	if !d.kill {
		return nil
	}
	for n := 0; ; n++ {
		pause := time.NewTimer(killEvery)
		select {
		case <-soft.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		}
		if d.check && n == len(programs) {
			return nil
		}
		if err := d.killOne(hard, programs[n%len(programs)], l); err != nil {
			return err
		}
	}
}

func (d *demo) killOne(ctx context.Context, program string, l *traffic.Load) error {
	inFlight := l.InFlight()
	if d.check {
		inFlight = awaitInFlight(ctx, l, leastInFlight)
	}
	if err := d.stack.kill(ctx, program); err != nil {
		return err
	}
	d.kills = append(d.kills, kill{program, inFlight})
	d.say("SIGKILL: %s is dead; requests in flight: %d", program, inFlight)
	killed := time.Now()
	ctx, cancel := context.WithTimeout(ctx, restartMax)
	defer cancel()
	// As a supervisor does: under load the first try may find nobody who answers in time.
	for n := 1; ; n++ {
		err := d.stack.start(ctx, program)
		if err == nil {
			break
		}
		if n == starts || ctx.Err() != nil {
			return fmt.Errorf("start %s again: %w", program, err)
		}
		d.say("%s did not start, once more", program)
		traffic.Pause(ctx, time.Second)
	}
	d.say("%s runs again after %.1f s", program, time.Since(killed).Seconds())
	return nil
}

// awaitInFlight waits up to five seconds for so many requests to be in flight, and returns how many there are.
func awaitInFlight(ctx context.Context, l *traffic.Load, least int64) int64 {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		n := l.InFlight()
		if n >= least {
			return n
		}
		select {
		case <-ctx.Done():
			return n
		case <-tick.C:
		}
	}
}
