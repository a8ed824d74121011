package local

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// catchMax is longer than a relay or consumer rests between two batches under any load, and longer
// than a lease.
const catchMax = 10 * time.Second

// Strike kills a program in the middle of its work: a relay, the leading one, with a batch at the
// broker, which drops it or has landed it; a consumer between committing its effects and its offsets.
func (s *Service) Strike(ctx context.Context, kind string, landed bool) error {
	ctx, cancel := context.WithTimeout(ctx, catchMax)
	defer cancel()

	p, err := s.await(ctx, kind)
	if err != nil {
		return err
	}

	// A relay dies while it sends payments, not its progress; a consumer before its offsets are
	// committed.
	request, catch := map[string]kmsg.Key{
		"relay": kmsg.Produce, "consumer": kmsg.OffsetCommit,
	}[kind]
	if !catch {
		return p.Kill()
	}

	dead := make(chan error, 1)
	s.kafka.Catch(request, TopicPrefix+"payments", func() (drop bool) {
		if ctx.Err() != nil { // the request that asked for it is gone
			return false
		}
		// Kill it before the broker answers: the cursor must not be behind this batch.
		dead <- p.Kill()
		return !landed
	})

	select {
	case err := <-dead:
		return err
	case <-ctx.Done():
		return fmt.Errorf("kill %s: it had nothing to do for %s", p.Name, catchMax)
	}
}

// await returns the program of that kind that runs, for a relay once one of them leads.
func (s *Service) await(ctx context.Context, kind string) (*Program, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()

	for {
		p, err := s.Find(ctx, kind)
		switch {
		case err != nil:
			return nil, err
		case p != nil && p.State() == Running:
			return p, nil
		}

		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("no %s is at work", kind), context.Cause(ctx))
		}
	}
}

// Start starts what is down of a program.
func (s *Service) Start(ctx context.Context, kind string) error {
	for _, p := range s.of(kind) {
		if err := p.Start(ctx); err != nil {
			return err
		}
	}
	return nil
}
