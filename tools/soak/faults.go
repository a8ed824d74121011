package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oncepay/oncepay/tools/rig"
)

// recoverMax is the time within which payments must flow again. A service that takes longer needs
// an operator.
const recoverMax = 45 * time.Second

// killEvery is long enough for a killed relay to be back as a standby.
const killEvery = 9 * time.Second

// faults kills the leading relay every twentieth of the time, except where latencies are measured,
// and promotes the standby in the middle.
func (s *soaking) faults(ctx context.Context, begun time.Time) error {
	at := func(share float64) {
		rig.Wait(ctx, begun.Add(time.Duration(share*float64(s.length))))
	}

	// Short runs have fewer kills, but no relay is killed before it is back.
	step := max(.05, float64(killEvery)/float64(s.length))
	kills := func(from, until float64) error {
		for share := from; share <= until; share += step {
			if at(share); ctx.Err() != nil {
				return nil
			}
			if err := s.killLeader(ctx); err != nil {
				return err
			}
		}
		return nil
	}

	if err := kills(.10, .41); err != nil {
		return err
	}

	at(.5)
	if ctx.Err() != nil {
		return nil
	}
	if err := s.promote(ctx); err != nil {
		return err
	}

	return kills(.65, .86)
}

func (s *soaking) killLeader(ctx context.Context) error {
	var leader, other *instance
	relays := s.relays()
	// Wait for exactly one leader and a running standby to take over.
	err := rig.Until(ctx, recoverMax, "one of two relays leads", func(ctx context.Context) bool {
		if relays[0].process.Load() == nil || relays[1].process.Load() == nil {
			return false
		}
		first, second := relays[0].leads(ctx), relays[1].leads(ctx)
		leader, other = relays[0], relays[1]
		if second {
			leader, other = other, leader
		}
		return first != second
	})
	if err != nil {
		return err
	}

	inFlight, killed := s.load.InFlight(), time.Now()
	if !leader.kill() {
		return fmt.Errorf("void: %s was not running", leader.name)
	}
	s.kills++

	if err := rig.Until(ctx, recoverMax, "the other relay leads", other.leads); err != nil {
		return err
	}
	took, err := s.tail.awaitNewer(ctx, killed)
	if err != nil {
		return err
	}

	s.Say("SIGKILL: %s, the leader; requests in flight: %d; a younger payment from %s after %.1f s",
		leader.name, inFlight, other.name, took.Seconds())
	return nil
}

func (s *soaking) promote(ctx context.Context) error {
	if err := s.pin.held(ctx); err != nil {
		return err
	}

	inFlight, killed := s.load.InFlight(), time.Now()
	if err := s.cluster.failOver(ctx); err != nil {
		return err
	}

	promoted := time.Now()
	s.promotions++
	// The session that held the snapshot must have died with the primary.
	if s.pin.conn.Ping(ctx) == nil {
		return errors.New("void: a session of the primary outlived it")
	}
	s.Say("SIGKILL: the primary; requests in flight: %d; the standby was promoted after %.1f s",
		inFlight, promoted.Sub(killed).Seconds())

	// The load goes on to its end even if payments do not flow again: then count finds what is
	// missing.
	var err error
	if s.pin, err = holdSnapshot(ctx, s.cluster.owner()); err != nil {
		return err
	}

	if _, err := s.tail.awaitNewer(ctx, promoted); err != nil {
		return err
	}
	s.Say("payments of the new primary arrive on their topic %.1f s after the SIGKILL",
		time.Since(killed).Seconds())
	return nil
}
