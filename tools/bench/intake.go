package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/oncepay/oncepay/internal/process"
)

// bench is one run of intake.
type bench struct {
	options
	progress
	dir    string // programs and logs
	server *server

	pool    int     // best for BATCH_MAX=1
	best    float64 // what it reached
	peak    float64 // memory of the API with group commit, MiB
	figures figures
}

// intake is the benchmark from top to bottom.
func intake(ctx context.Context, o options, stdout io.Writer) (err error) {
	b := &bench{options: o, progress: progress{stdout, time.Now()}, figures: figures{}}
	if b.dir, err = os.MkdirTemp("", "oncepay-bench-"); err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	b.server = &server{dir: b.dir, given: o.databaseURL}
	if o.databaseURL != "" {
		if err := b.server.inspect(ctx); err != nil { // before the minute that a first build takes
			return err
		}
	}
	b.say("building api and oncepay")
	if err := process.Build(ctx, b.dir, nil, "api", "oncepay"); err != nil {
		return err
	}
	b.say("starting Postgres and opening %d accounts", o.accounts)
	defer func() { err = errors.Join(err, b.server.close()) }()
	if err := b.server.open(ctx, o.accounts); err != nil {
		return err
	}
	machine, err := b.server.machine(ctx)
	if err != nil {
		return err
	}
	b.say("%s", machine)
	if err := b.findPool(ctx); err != nil {
		return err
	}
	if b.rate == 0 {
		b.rate = b.best / 2
	}
	for round := range o.rounds {
		if err := b.round(ctx, round+1); err != nil {
			return err
		}
	}
	if !o.smoke {
		if err := b.once(ctx); err != nil {
			return err
		}
	}
	b.figures.add("rss_mib", b.peak)
	b.report(machine)
	if o.smoke && !(b.figures.median("ratio") >= 2) {
		return fmt.Errorf("group commit is only %.2f times as fast: something is broken", b.figures.median("ratio"))
	}
	return nil
}

// findPool tries how many connections BATCH_MAX=1 needs: it is to be compared at its best.
func (b *bench) findPool(ctx context.Context) error {
	if len(b.pools) == 1 {
		b.pool = b.pools[0]
		return nil
	}
	for _, pool := range b.pools {
		m, err := b.single(ctx, setup{pool: pool}, stretch{connections: b.connections, warm: time.Second, long: 2 * time.Second})
		if err != nil {
			return fmt.Errorf("find the best pool, %d connections: %w", pool, err)
		}
		b.say("BATCH_MAX=1, DATABASE_POOL=%d: %.0f payments/s", pool, m.perSecond)
		if m.perSecond > b.best {
			b.best, b.pool = m.perSecond, pool
		}
	}
	b.say("the best pool for BATCH_MAX=1 has %d connections", b.pool)
	return nil
}

// single measures one stretch in a session of its own.
func (b *bench) single(ctx context.Context, to setup, st stretch) (m measured, err error) {
	err = b.session(ctx, to, func(s *session) (err error) {
		m, err = s.measure(ctx, st)
		return err
	})
	return m, err
}

// twice measures a stretch and then, in the same session, the replays of what it paid.
func (b *bench) twice(ctx context.Context, to setup, st stretch) (first, replays measured, err error) {
	err = b.session(ctx, to, func(s *session) (err error) {
		if first, err = s.measure(ctx, st); err != nil {
			return err
		}
		st.replay = first.keys
		if replays, err = s.measure(ctx, st); err != nil {
			return fmt.Errorf("replays: %w", err)
		}
		return nil
	})
	return first, replays, err
}

// round measures everything once. What is compared is measured one right after the other.
func (b *bench) round(ctx context.Context, n int) error {
	off, on, f := setup{pool: b.pool}, setup{group: true}, b.figures
	closed := stretch{connections: b.connections, warm: b.warm(), long: b.window()}

	single, err := b.single(ctx, off, closed)
	if err != nil {
		return fmt.Errorf("round %d, closed loop, BATCH_MAX=1: %w", n, err)
	}
	var group, replays measured
	if b.smoke {
		group, err = b.single(ctx, on, closed)
	} else {
		group, replays, err = b.twice(ctx, on, closed)
	}
	if err != nil {
		return fmt.Errorf("round %d, closed loop, group commit: %w", n, err)
	}
	b.say("round %d, %d connections: %.0f payments/s, with group commit %.0f (%.1f a batch)", n, b.connections, single.perSecond, group.perSecond, group.batches.mean())
	f.compareClosed(single, group)
	if b.smoke {
		return nil
	}
	f.add("replay_per_s", replays.perSecond)
	f.add("replay_ratio", replays.perSecond/group.perSecond)

	one := stretch{connections: 1, warm: b.warm(), long: b.window()}
	if single, err = b.single(ctx, off, one); err != nil {
		return fmt.Errorf("round %d, one connection, BATCH_MAX=1: %w", n, err)
	}
	if group, err = b.single(ctx, on, one); err != nil {
		return fmt.Errorf("round %d, one connection, group commit: %w", n, err)
	}
	b.say("round %d, 1 connection: p50 %.2f ms, with group commit %.2f ms", n, single.quantile(50), group.quantile(50))
	f.add("single_1conn_p50_ms", single.quantile(50))
	f.add("group_1conn_p50_ms", group.quantile(50))
	f.add("p50_ratio_1conn", group.quantile(50)/single.quantile(50))

	open := stretch{connections: b.connections, rate: b.rate, warm: b.warm(), long: b.window()}
	if single, err = b.single(ctx, off, open); err != nil {
		return fmt.Errorf("round %d, open loop, BATCH_MAX=1: %w", n, err)
	}
	if group, replays, err = b.twice(ctx, on, open); err != nil {
		return fmt.Errorf("round %d, open loop, group commit: %w", n, err)
	}
	b.say("round %d, %.0f payments/s in an open loop: p99 %.1f ms, with group commit %.1f ms, replays %.1f ms", n, b.rate, single.quantile(99), group.quantile(99), replays.quantile(99))
	f.compareOpen(single, group, replays)

	if err := b.flood(ctx, n); err != nil {
		return fmt.Errorf("round %d, flood: %w", n, err)
	}
	if b.hot {
		return nil
	}
	closed.hot = true
	hot, err := b.single(ctx, on, closed)
	if err != nil {
		return fmt.Errorf("round %d, hot account: %w", n, err)
	}
	f.add("hot_per_s", hot.perSecond)
	f.add("hot_ratio", hot.perSecond/f.last("group_per_s"))
	b.say("round %d, hot account: %.0f payments/s", n, hot.perSecond)
	return nil
}

// once measures what needs no rounds.
func (b *bench) once(ctx context.Context) error {
	short := stretch{connections: 1, warm: time.Second, long: time.Second}
	err := b.session(ctx, setup{group: true, count: true}, func(s *session) error {
		for _, n := range []int{1, b.connections} {
			short.connections = n
			m, err := s.measure(ctx, short)
			if err != nil {
				return err
			}
			b.say("%.2f statements a batch of %.1f payments", m.statements, m.batches.mean())
			b.figures.add("statements_per_batch", m.statements)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("count statements: %w", err)
	}
	if b.profile != "" {
		st := stretch{connections: b.connections, warm: b.warm(), long: b.window(), profile: b.profile}
		if _, err := b.single(ctx, setup{group: true}, st); err != nil {
			return fmt.Errorf("profile: %w", err)
		}
		b.say("profile of the API: go tool pprof -top %s", b.profile)
	}
	if b.stored > 0 {
		return b.measureStored(ctx)
	}
	return nil
}
