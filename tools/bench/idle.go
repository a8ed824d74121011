package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	idleSettle  = 2 * time.Second // a relay that has just sent something asks more often
	idleWindows = 3               // the median leaves out what the server writes once by itself, some 50 bytes after activity
)

// idle measures a relay that leads and has nothing to send.
func (b *relayBench) idle(ctx context.Context) (err error) {
	d, err := b.server.fresh(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.server.release(context.WithoutCancel(ctx), d)) }()
	window := 4 * time.Second
	if b.smoke {
		window = time.Second
	}
	_, err = b.session(ctx, b.ours(), d, func(s *relaySession) (int, error) {
		if err := insert(ctx, s.conn, ourTable, []int64{0}, []string{keyOf(0)}); err != nil {
			return 0, err
		}
		if _, err := s.topic.await(ctx, 1, s.relay); err != nil {
			return 0, err
		}
		wait(ctx, time.Now().Add(idleSettle))
		for range idleWindows {
			if err := b.idleWindow(ctx, s, window); err != nil {
				return 0, err
			}
		}
		return 1, nil
	})
	if err != nil {
		return fmt.Errorf("idle: %w", err)
	}
	b.say("idle: %.2f %% of a core, %.0f bytes of log in %s", 100*b.figures.median("idle_cpu"), b.figures.median("idle_wal_bytes"), window)
	return nil
}

func (b *relayBench) idleWindow(ctx context.Context, s *relaySession, window time.Duration) error {
	type reading struct {
		relay, db time.Duration
		wal       int64
	}
	read := func() (r reading, err error) {
		if err := s.conn.QueryRow(ctx, walWritten).Scan(&r.wal); err != nil {
			return r, fmt.Errorf("read the position of the log: %w", err)
		}
		if r.relay, err = processTime(s.relay.Pid(), false); err != nil {
			return r, err
		}
		r.db, err = b.server.time()
		return r, err
	}
	before, err := read()
	if err != nil {
		return err
	}
	start := time.Now()
	wait(ctx, start.Add(window))
	after, err := read()
	if err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	took := time.Since(start).Seconds()
	b.figures.add("idle_cpu", (after.relay-before.relay).Seconds()/took)
	b.figures.add("idle_postgres_cpu", (after.db-before.db).Seconds()/took)
	b.figures.add("idle_wal_bytes", float64(after.wal-before.wal))
	return nil
}
