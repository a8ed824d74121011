package main

import (
	"context"
	"fmt"
	"time"

	"github.com/oncepay/oncepay/internal/traffic"
)

const (
	killEvery  = 4 * time.Second
	restartMax = time.Minute
	starts     = 5
)

// leastInFlight is how many requests the API must hold when a program dies, for the kill to prove
// anything.
const leastInFlight = 50

// victim is a program to kill.
type victim struct {
	program string
	batch   string // for a relay: the fate of the batch that it has at the broker
}

// The next leader sends a dropped batch for the first time. It sends a landed one again, because
// the relay that died did not hear of the acknowledgement.
const (
	dropped = "dropped"
	landed  = "landed"
)

// victims are in the order of their kills.
var victims = []victim{
	{program: "api"}, {"relay", dropped}, {program: "consumer"}, {"relay", landed},
}

func (v victim) String() string {
	if v.batch != "" {
		return v.program + " with its batch " + v.batch
	}
	return v.program
}

// kill is one that happened.
type kill struct {
	victim
	inFlight int64
}

// killInTurn kills one program after the other and restarts each, with a pause before every kill.
// It returns when soft ends or, with -check, when each victim was killed once.
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

		if d.check && n == len(victims) {
			return nil
		}
		if err := d.killOne(hard, victims[n%len(victims)], l); err != nil {
			return err
		}
	}
}

func (d *demo) killOne(ctx context.Context, v victim, l *traffic.Load) error {
	inFlight := l.InFlight()
	if d.check {
		inFlight = awaitInFlight(ctx, l, leastInFlight)
	}

	if err := d.stack.kill(ctx, v); err != nil {
		return err
	}

	d.kills = append(d.kills, kill{v, inFlight})
	d.say("SIGKILL: %s is dead; requests in flight: %d", d.name(v), inFlight)

	killed := time.Now()
	ctx, cancel := context.WithTimeout(ctx, restartMax)
	defer cancel()

	// Retry as a supervisor would: under load the first start may time out on its dependencies.
	for n := 1; ; n++ {
		err := d.stack.start(ctx, v.program)
		if err == nil {
			break
		}
		if n == starts || ctx.Err() != nil {
			return fmt.Errorf("start %s again: %w", v.program, err)
		}
		d.say("%s did not start, once more", v.program)
		traffic.Pause(ctx, time.Second)
	}

	d.say("%s runs again after %.1f s", v.program, time.Since(killed).Seconds())
	return nil
}

// name describes the victim as precisely as this stack controls its death.
func (d *demo) name(v victim) string {
	if d.compose {
		return v.program
	}
	return v.String()
}

// awaitInFlight waits up to five seconds for least requests to be in flight. It returns how many
// there are.
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
