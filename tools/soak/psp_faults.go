package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/oncepay/oncepay/internal/fakepsp"
	"github.com/oncepay/oncepay/internal/traffic"
)

// How often each fault comes. All at once, for as long as the load lasts.
const (
	killWorkerEvery  = 3 * time.Second
	killFakePSPEvery = 10 * time.Second
	cutEvery         = 7 * time.Second
	kafkaAwayFor     = 20 * time.Second
)

// faultFlags are those of fakepsp, which has them again when it is restarted.
func (s *storming) faultFlags() []string {
	return []string{
		"FAKEPSP_LOSE_REPLY=0.05", "FAKEPSP_ERROR_BEFORE=0.025", "FAKEPSP_ERROR_AFTER=0.025",
		"FAKEPSP_SLOW=0.01", "FAKEPSP_SLOW_FOR=" + s.slowFor.String(), "FAKEPSP_DECLINE=0.02",
		"FAKEPSP_WEBHOOK_DOUBLE=0.5", "FAKEPSP_WEBHOOK_SHUFFLE=0.5",
	}
}

// blow applies load and faults, and ends both.
func (s *storming) blow(ctx context.Context) error {
	if err := s.load.prepare(ctx, s); err != nil {
		return err
	}

	raging, calm := context.WithCancel(ctx)
	defer calm()
	g, all := errgroup.WithContext(raging)
	g.Go(func() error {
		defer calm()
		return s.load.run(ctx, s.payments, s.rate, s.unsettled)
	})
	g.Go(func() error { return s.killEvery(all, "worker", killWorkerEvery) })
	g.Go(func() error { return s.killEvery(all, "fakepsp", killFakePSPEvery) })
	g.Go(func() error { return s.cutConnections(all) })
	g.Go(func() error { return s.takeKafkaAway(all) })
	g.Go(func() error { s.watch(all); return nil })
	if err := g.Wait(); err != nil {
		return err
	}
	return s.calmPSP(ctx)
}

func (s *storming) killEvery(ctx context.Context, name string, pause time.Duration) error {
	for {
		if traffic.Pause(ctx, pause); ctx.Err() != nil {
			return nil
		}
		// It may be about to start again.
		if s.instances[name].kill() {
			s.mu.Lock()
			s.kills[name+"s"]++
			s.mu.Unlock()
		}
	}
}

// Everybody's but the owner's: this run has its own.
const cutAll = `
SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND usename <> 'postgres'`

func (s *storming) cutConnections(ctx context.Context) error {
	for {
		if traffic.Pause(ctx, cutEvery); ctx.Err() != nil {
			return nil
		}
		var n int64
		if err := s.db.QueryRow(context.WithoutCancel(ctx), cutAll).Scan(&n); err != nil {
			return fmt.Errorf("cut connections: %w", err)
		}
		s.cuts += n
	}
}

// takeKafkaAway does so after a third of the load, once.
func (s *storming) takeKafkaAway(ctx context.Context) error {
	length := time.Duration(s.payments/s.rate) * time.Second
	traffic.Pause(ctx, length/3)
	s.kafka.SetDown(true)
	s.Say("the broker is away")
	traffic.Pause(ctx, min(kafkaAwayFor, length/3))
	s.kafka.SetDown(false)
	s.Say("the broker is back")
	return nil
}

// calmPSP ends the faults of fakepsp, which may just be starting.
func (s *storming) calmPSP(ctx context.Context) error {
	for {
		var none fakepsp.Faults
		err := fakepsp.Ask(ctx, http.MethodPut, "http://"+s.psp, "/admin/faults", none, &none)
		if err == nil {
			return nil
		}

		if traffic.Pause(ctx, 100*time.Millisecond); ctx.Err() != nil {
			return fmt.Errorf("end the faults of fakepsp: %w", err)
		}
	}
}

const countOpen = `
SELECT count(*) FILTER (WHERE state = 'pending'), count(*) FILTER (WHERE state = 'unknown'),
  count(*) FILTER (WHERE ended_at IS NOT NULL), coalesce(max(tries), 0)
FROM psp_operations`

type openOperations struct{ pending, unknown, ended, tries int }

func (s *storming) open(ctx context.Context) (o openOperations, err error) {
	err = s.db.QueryRow(ctx, countOpen).Scan(&o.pending, &o.unknown, &o.ended, &o.tries)
	if err != nil {
		err = fmt.Errorf("count operations: %w", err)
	}
	return o, err
}

// unsettled is how many operations are open, as far as that can be found out.
func (s *storming) unsettled(ctx context.Context) int {
	o, err := s.open(ctx)
	if err != nil {
		return 0
	}
	return o.pending + o.unknown
}

// watch prints a progress line at intervals.
func (s *storming) watch(ctx context.Context) {
	for traffic.Pause(ctx, 10*time.Second); ctx.Err() == nil; traffic.Pause(ctx, 10*time.Second) {
		if o, err := s.open(context.WithoutCancel(ctx)); err == nil {
			s.Say("%d payments asked for; operations: %d pending, %d unknown, %d ended",
				s.load.acknowledged.Load(), o.pending, o.unknown, o.ended)
		}
	}
}
