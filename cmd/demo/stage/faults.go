package stage

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/oncepay/oncepay/cmd/demo/local"
	"github.com/oncepay/oncepay/cmd/demo/page"
	"github.com/oncepay/oncepay/internal/traffic"
)

// What was killed comes back after a pause that is long enough to watch the effect.
const (
	restartAfter = 2 * time.Second
	brokerAfter  = 4 * time.Second

	// A relay that is back within the lease of 3 s may become its own successor.
	relayAfter = 4 * time.Second
)

// victims are what can be killed and frozen, by the names of the page.
var victims = []string{"api", "relay", "consumer", "worker", "psp", "kafka"}

func known(who string) error {
	if !slices.Contains(victims, who) {
		return page.ErrUnknown
	}
	return nil
}

// find returns the program of that name; of the relays the one that leads.
func (s *Stage) find(ctx context.Context, who string) (*local.Program, error) {
	if who == "psp" {
		who = "fakepsp"
	}
	p, err := s.Service.Find(ctx, who)
	if err == nil && p == nil {
		err = page.Refused("no relay leads at the moment: its lease has to end first")
	}
	return p, err
}

// kill ends a program as a crash would, and starts it again.
func (s *Stage) kill(ctx context.Context, who string) (string, error) {
	if err := known(who); err != nil {
		return "", err
	}
	if who == "kafka" {
		return s.killBroker()
	}
	p, err := s.find(ctx, who)
	if err != nil {
		return "", err
	}
	return s.killProgram(p)
}

func (s *Stage) killProgram(p *local.Program) (string, error) {
	if err := p.Kill(); err != nil {
		return "", refused(err)
	}
	after := restartAfter
	if p.Kind == "relay" {
		after = relayAfter
		s.interrupted()
	}

	name, killed := nameOf(p), time.Now()
	s.Timeline.Add(page.Fault, "SIGKILL to %s", name)
	s.restarts.Go(func() {
		traffic.Pause(s.ending, after)
		// As a supervisor: what it depends on may be away, too.
		for s.living.Err() == nil {
			err := p.Start(s.living)
			if err == nil {
				s.Timeline.Add(page.Recovery, "%s runs again, %.1f s after the kill", name, time.Since(killed).Seconds())
				return
			}
			traffic.Pause(s.living, time.Second)
		}
	})
	return fmt.Sprintf("%s was killed; it is started again after %.0f s", name, after.Seconds()), nil
}

func (s *Stage) killBroker() (string, error) {
	broker := s.Service.Kafka()
	if err := broker.Kill(); err != nil {
		return "", refused(err)
	}

	s.interrupted()
	s.Timeline.Add(page.Fault, "Kafka is away")
	s.restarts.Go(func() {
		traffic.Pause(s.ending, brokerAfter)
		broker.Start()
		s.Timeline.Add(page.Recovery, "Kafka is back after 4 s, with all that it had")
	})
	return "Kafka is away; it comes back after 4 s", nil
}

// freeze stops a program where it is.
func (s *Stage) freeze(ctx context.Context, who string) (string, error) {
	if err := known(who); err != nil {
		return "", err
	}
	if who == "kafka" {
		if err := s.Service.Kafka().Freeze(); err != nil {
			return "", refused(err)
		}
		s.interrupted()
		s.Timeline.Add(page.Fault, "Kafka answers nobody")
		return "Kafka is frozen: connections stay open, and requests wait", nil
	}

	p, err := s.find(ctx, who)
	if err != nil {
		return "", err
	}
	if err := p.Freeze(); err != nil {
		return "", refused(err)
	}
	if p.Kind == "relay" {
		s.interrupted()
	}
	s.Timeline.Add(page.Fault, "SIGSTOP to %s", nameOf(p))
	return nameOf(p) + " is frozen", nil
}

// thaw lets what is frozen go on.
func (s *Stage) thaw(_ context.Context, who string) (string, error) {
	if err := known(who); err != nil {
		return "", err
	}
	if who == "kafka" {
		if err := s.Service.Kafka().Thaw(); err != nil {
			return "", refused(err)
		}
		s.Timeline.Add(page.Recovery, "Kafka answers again")
		return "Kafka goes on where it was", nil
	}

	for _, p := range s.Service.All() {
		if p.Kind != who && nameOf(p) != who || p.State() != local.Frozen {
			continue
		}
		if err := p.Thaw(); err != nil {
			return "", refused(err)
		}
		s.Timeline.Add(page.Recovery, "SIGCONT to %s", nameOf(p))
		return nameOf(p) + " goes on where it was", nil
	}
	return "", page.Refused(who + " is not frozen")
}

// loseCommitReply waits for a payment of the page: the visitor wants to see what becomes of it.
func (s *Stage) loseCommitReply() (string, error) {
	s.Service.LoseCommitReply(keyPrefix)
	s.Timeline.Add(page.Fault, "the reply to the COMMIT of the next payment from this page will be lost")
	return "the next payment from this page loses the reply to its COMMIT: pay now", nil
}
