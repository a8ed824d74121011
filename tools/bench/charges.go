package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/procfs"

	"github.com/oncepay/oncepay/internal/fakepsp"
	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/tools/rig"
)

const (
	steadyCards = 200 // card payments a second while their wait is measured
	besideCards = 50  // beside payments between accounts
	pspWarm     = 2 * time.Second
)

// pspTurns are compared: payments between accounts with card payments beside them, while the PSP
// answers, and while it does not.
var pspTurns = []stretch{
	{name: "up", open: true, beside: besideCards, warm: pspWarm},
	// By the end of the warm-up the breaker is open.
	{name: "down", open: true, beside: besideCards, warm: pspWarm},
}

// closedLoop measures card payments as fast as they are accepted, until the last one has ended.
func (p *provided) closedLoop(ctx context.Context) error {
	pays := newPayments(p.shop, false)
	programs := []*process.Process{p.worker, p.psp}
	before, err := processorTimes(programs)
	if err != nil {
		return err
	}

	spent, err := p.cost(ctx, p.api, func() error {
		err := p.send(ctx, p.charges, func() []byte { return pays.card(nil, newKey()) })
		return errors.Join(err, p.settle(ctx))
	})
	if err != nil {
		return err
	}
	p.count(ofCard, p.charges)

	after, err := processorTimes(programs)
	if err != nil {
		return err
	}

	// The clock of the database has both ends: it is asked only now and then whether all have ended.
	// A claim has one first try, and a transaction that recorded results its id in their rows.
	const took = `
SELECT extract(epoch FROM max(ended_at) - min(created_at))::float8,
  count(*)::float8 / count(DISTINCT first_tried_at), count(*)::float8 / count(DISTINCT xmin::text)
FROM psp_operations`
	var seconds, claim, batch float64
	if err := p.db.QueryRow(ctx, took).Scan(&seconds, &claim, &batch); err != nil {
		return fmt.Errorf("read when the last one ended: %w", err)
	}

	n := float64(p.charges)
	m := measured{
		"per_s": n / seconds, "api_us": 1e6 * spent.program / n, "postgres_us": 1e6 * spent.postgres / n,
		"worker_us": 1e6 * (after[0] - before[0]) / n, "psp_us": 1e6 * (after[1] - before[1]) / n,
		"generator_us": 1e6 * spent.own / n, "wal_bytes": spent.wal / n,
		"claim": claim, "batch": batch,
	}
	p.Say("%.0f charges/s; API %.0f µs, worker %.0f µs, Postgres %.0f µs, fakepsp %.0f µs each",
		m["per_s"], m["api_us"], m["worker_us"], m["postgres_us"], m["psp_us"])
	p.figures.add("charges", m, "")
	return nil
}

// processorTimes are in seconds.
func processorTimes(programs []*process.Process) (seconds []float64, err error) {
	for _, program := range programs {
		proc, err := procfs.NewProc(program.Pid())
		if err != nil {
			return nil, fmt.Errorf("read the processor time of %s: %w", program.Name, err)
		}
		stat, err := proc.Stat()
		if err != nil {
			return nil, fmt.Errorf("read the processor time of %s: %w", program.Name, err)
		}
		seconds = append(seconds, stat.CPUTime())
	}
	return seconds, nil
}

// steady measures how long card payments wait for the call of the PSP: by the worker's own metric,
// which is what operators have, and to the claim right before the call exactly.
func (p *provided) steady(ctx context.Context) (err error) {
	var spent cost
	if spent.before, err = rig.Metrics(ctx, p.worker.Admin); err != nil {
		return err
	}
	began := time.Now()
	if _, err := p.measure(ctx, stretch{name: "steady", cards: true, warm: pspWarm}); err != nil {
		return err
	}
	if err := p.settle(ctx); err != nil {
		return err
	}
	if spent.after, err = rig.Metrics(ctx, p.worker.Admin); err != nil {
		return err
	}
	waits, err := spent.histogram("psp_first_call_wait_seconds")
	if err != nil {
		return err
	}

	const claimed = `
SELECT percentile_cont(ARRAY[.5, .99]) WITHIN GROUP (ORDER BY extract(epoch FROM first_tried_at - created_at))
FROM psp_operations WHERE created_at >= $1`
	var exact []float64
	if err := p.db.QueryRow(ctx, claimed, began).Scan(&exact); err != nil {
		return fmt.Errorf("read when operations were claimed: %w", err)
	}

	m := measured{
		"wait_p50_ms": 1000 * waits.atMost(.5), "wait_p99_ms": 1000 * waits.atMost(.99),
		"claim_wait_p50_ms": 1000 * exact[0], "claim_wait_p99_ms": 1000 * exact[1],
	}
	p.Say("until the call: p50 at most %.0f ms, p99 at most %.0f ms; until the claim %.1f ms, %.1f ms",
		m["wait_p50_ms"], m["wait_p99_ms"], m["claim_wait_p50_ms"], m["claim_wait_p99_ms"])
	p.figures.add("steady", m, "")
	return nil
}

// turn measures payments between accounts, with the PSP as the turn's name says.
func (p *provided) turn(ctx context.Context, st stretch) error {
	down := ""
	if st.name == "down" {
		down = fakepsp.Unavailable
	}
	if err := p.faults(ctx, down); err != nil {
		return err
	}
	if _, err := p.measure(ctx, st); err != nil {
		return fmt.Errorf("%s: %w", st.name, err)
	}
	waiting, err := p.unsettled(ctx)
	if err != nil {
		return err
	}
	p.figures.add(st.name, measured{"waiting": float64(waiting)}, "")

	// A PSP that answered after all would have left a few.
	if sent := besideCards * p.seconds; (waiting > sent/2) != (down != "") {
		return fmt.Errorf("the PSP was to be %s, and of %d card payments %d wait", st.name, sent, waiting)
	}
	return errors.Join(p.faults(ctx, ""), p.settle(ctx))
}
