package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

const (
	floodConnections = 512 // more than a tenant's share
	quietRate        = 50  // requests a second of the tenant that is looked at: nothing, beside the flood, and enough for a p99
	quietConnections = 32
)

// flood measures what a tenant that sends little notices of one that sends all it can, and takes a refusal for a reason to send again at once.
func (b *bench) flood(ctx context.Context, n int) error {
	quiet := stretch{connections: quietConnections, rate: quietRate, warm: b.warm(), long: b.window() * 3 / 2}
	noise := stretch{connections: floodConnections, warm: quiet.warm, long: quiet.long}
	return b.session(ctx, setup{group: true, limits: true}, func(s *session) error {
		alone, _, err := s.beside(ctx, quiet, stretch{})
		if err != nil {
			return fmt.Errorf("alone: %w", err)
		}
		flooded, flood, err := s.beside(ctx, quiet, noise)
		if err != nil {
			return err
		}
		if flood.refused == 0 {
			return errors.New("nothing was refused: it is no flood")
		}
		b.say("round %d, a tenant at %d/s: p99 %.1f ms, while another one floods %.1f ms (%d of that one's done, %d refused)",
			n, quietRate, alone.quantile(99), flooded.quantile(99), flood.first, flood.refused)
		b.figures.add("flood_alone_p99_ms", alone.quantile(99))
		b.figures.add("flood_p99_ms", flooded.quantile(99))
		b.figures.add("flood_p99_ratio", flooded.quantile(99)/alone.quantile(99))
		b.figures.add("flood_per_s", float64(flood.first)/(noise.warm+noise.long).Seconds())
		return nil
	})
}

// beside sends what the neighbour sends, and at the same time what the other tenant does, if that has connections.
func (s *session) beside(ctx context.Context, quiet, noise stretch) (q, n traffic, err error) {
	var all sync.WaitGroup
	var quietErr, noiseErr error
	all.Go(func() { q, quietErr = s.load(quiet, s.b.server.neighbour).run(ctx, func() {}, func() {}) })
	if noise.connections > 0 {
		l := s.load(noise, s.b.server.seed)
		l.refusals = true
		all.Go(func() { n, noiseErr = l.run(ctx, func() {}, func() {}) })
	}
	all.Wait()
	s.first += q.first + n.first
	return q, n, errors.Join(quietErr, noiseErr, q.err(), n.err())
}
