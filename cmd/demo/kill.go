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
	{program: "api"}, {"relay", dropped}, {program: "consumer"}, {program: "worker"},
	{program: "fakepsp"}, {"relay", landed},
}

func (v victim) String() string {
	if v.batch != "" {
		return v.program + " with its batch " + v.batch
	}
	return v.program
}

// moment is where in its work a program of local is killed, and aftermath what is not over when it
// runs again.
var (
	moment = map[victim]string{
		{"relay", dropped}:    ", its batch did not reach Kafka",
		{"relay", landed}:     ", its batch reached Kafka",
		{program: "consumer"}: ", its offset not committed",
	}
	aftermath = map[string]string{
		"api":      "; clients repeat what was cut off",
		"relay":    "; the next one sends when the lease ends (3 s)",
		"consumer": "; Kafka waits 10 s for the old one",
		"worker":   "; it finds what was not released, or not answered",
		"fakepsp":  "; what it has done is in its books",
	}
)

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
		traffic.Pause(soft, killEvery)
		if soft.Err() != nil || d.check && n == len(victims) {
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

	if err := d.stack.Strike(ctx, v.program, v.batch == landed); err != nil {
		if d.stage != nil && ctx.Err() == nil { // a visitor of the page has frozen or killed it
			d.say("%s was not killed: %v", v.program, err)
			return nil
		}
		return err
	}

	d.kills = append(d.kills, kill{v, inFlight})
	when, after := moment[v], aftermath[v.program]
	if d.compose {
		when, after = "", "" // at any moment, and it takes seconds to be healthy again
	}
	d.say("SIGKILL to %s, %d requests in flight%s", v.program, inFlight, when)

	killed := time.Now()
	ctx, cancel := context.WithTimeout(ctx, restartMax)
	defer cancel()

	// Retry as a supervisor would: under load the first start may time out on its dependencies.
	for n := 1; ; n++ {
		err := d.stack.Start(ctx, v.program)
		if err == nil {
			break
		}
		if n == starts || ctx.Err() != nil {
			return fmt.Errorf("start %s again: %w", v.program, err)
		}
		d.say("%s did not start; trying again", v.program)
		traffic.Pause(ctx, time.Second)
	}

	if v.program == "fakepsp" {
		if err := d.spoil(ctx); err != nil {
			return err
		}
	}
	d.say("%s runs again after %s%s", v.program, time.Since(killed).Round(time.Millisecond), after)
	return nil
}

// awaitInFlight waits up to five seconds for least requests to be in flight. It returns how many
// there are.
func awaitInFlight(ctx context.Context, l *traffic.Load, least int64) int64 {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()

	n := l.InFlight()
	for n < least && ctx.Err() == nil {
		traffic.Pause(ctx, time.Millisecond)
		n = l.InFlight()
	}
	return n
}
