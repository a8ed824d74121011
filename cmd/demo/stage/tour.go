package stage

import (
	"context"
	"fmt"
	"time"

	"github.com/oncepay/oncepay/cmd/demo/local"
	"github.com/oncepay/oncepay/cmd/demo/page"
)

// step is one of the tour. It does the real thing and returns what was proved, with the numbers.
type step struct {
	page.Step
	play func(*Stage, context.Context) (string, error)
}

// stepMax is beyond the longest step, which waits for a lease and for a restart.
const stepMax = time.Minute

var steps = []step{
	{page.Step{
		Title:  "Lose a reply: nobody pays twice",
		Text:   "Postgres commits a payment, and the connection breaks before the API hears of it.",
		Action: "Lose the reply to COMMIT",
		File:   "internal/idempotency/commit_once.go",
	}, (*Stage).playLostReply},
	{page.Step{
		Title:  "Repeat with another amount: refused",
		Text:   "A client sends 26.00 USD under the key that paid 25.00 USD.",
		Action: "Repeat with another amount",
		File:   "internal/idempotency/claim.go",
	}, (*Stage).playOtherAmount},
	{page.Step{
		Title:  "Hold a transaction open: nobody else waits",
		Text:   "A transaction has written to the outbox and does not end, and a hundred payments are made.",
		Action: "Hold a transaction open",
		File:   "internal/relay/cursor.go",
	}, (*Stage).playHeld},
	{page.Step{
		Title:  "Kill the leading relay: the other takes over",
		Text:   "SIGKILL to the relay that leads, in the middle of its work.",
		Action: "Kill the leader",
		File:   "internal/relay/leader.go",
	}, (*Stage).playKilledLeader},
	{page.Step{
		Title:  "The PSP loses its reply: charged once",
		Text:   "The PSP charges the card, and the connection breaks before it answers.",
		Action: "Pay by card",
		File:   "internal/psp/worker.go",
	}, (*Stage).playLostCharge},
	{page.Step{
		Title:  "Freeze the leader and wake it: fenced off",
		Text:   "The leader sleeps for longer than its lease, and goes on as if nothing had happened.",
		Action: "Freeze the leader",
		File:   "internal/relay/lease.go",
	}, (*Stage).playFrozenLeader},
}

func tour() (all []page.Step) {
	for _, s := range steps {
		all = append(all, s.Step)
	}
	return all
}

// Play does a step of the tour, from 1, one at a time.
func (s *Stage) Play(ctx context.Context, n int) (page.Proof, error) {
	ctx, done, err := s.begin(ctx)
	if err != nil {
		return page.Proof{}, err
	}
	defer done()
	if !s.touring.TryLock() {
		return page.Proof{}, page.Refused("another step of the tour is under way")
	}
	defer s.touring.Unlock()

	ctx, cancel := context.WithTimeout(ctx, stepMax)
	defer cancel()
	if err := s.wellFirst(ctx); err != nil {
		return page.Proof{}, err
	}

	step, began := steps[n-1], time.Now()
	s.Timeline.Add(page.Action, "tour %d: %s", n, step.Title)
	proved, err := step.play(s, ctx)
	if err != nil {
		s.Timeline.Add(page.Wrong, "tour %d was not proved: %v", n, err)
		return page.Proof{}, err
	}
	s.Timeline.Add(page.Proved, "tour %d: %s", n, proved)
	return page.Proof{
		OK: true, Proved: proved, File: step.File,
		Seconds: time.Since(began).Round(time.Millisecond * 100).Seconds(),
	}, nil
}

// wellFirst waits until what was killed runs again. What is frozen has to be woken by who froze it.
func (s *Stage) wellFirst(ctx context.Context) error {
	for _, name := range s.faults().Frozen {
		return page.Refused(name + " is frozen: wake it first")
	}

	return s.until(ctx, "every program runs and a relay leads", func(ctx context.Context) (bool, error) {
		for _, p := range s.Service.All() {
			if p.State() != local.Running {
				return false, nil
			}
		}
		leader, err := s.Service.Find(ctx, "relay")
		return err == nil && leader != nil && s.Service.Kafka().State() == local.Running, err
	})
}

// until asks again and again until it is so.
func (s *Stage) until(ctx context.Context, what string, is func(context.Context) (bool, error)) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()

	for {
		done, err := is(ctx)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("it did not happen in time that %s", what)
		case err != nil:
			return err
		case done:
			return nil
		}

		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}
