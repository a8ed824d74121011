package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/traffic"
	"github.com/oncepay/oncepay/tools/rig"
)

// instance is a program that is restarted when it ends, as a supervisor does. Ending by itself is a
// finding: an operator was needed, if only to configure the supervisor.
type instance struct {
	name string // relay-1
	dir  string // its binary and log
	env  []string

	pause time.Duration // before it is started again

	process atomic.Pointer[process.Process] // nil: not running
	killed  atomic.Bool                     // by us

	mu    sync.Mutex
	ended []string // what it said when it ended by itself
}

// restartAfter is longer than the lease, so that the standby takes over and not the killed relay.
const restartAfter = 5 * time.Second

// newInstance gives a program a directory of its own, so that two of a kind have two logs.
func newInstance(dir, program, name string, env ...string) (*instance, error) {
	i := &instance{name: name, dir: filepath.Join(dir, name), env: env, pause: restartAfter}
	if err := os.Mkdir(i.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make a directory: %w", err)
	}
	if err := os.Symlink(filepath.Join(dir, program), filepath.Join(i.dir, program)); err != nil {
		return nil, fmt.Errorf("link %s: %w", program, err)
	}
	return i, nil
}

// run keeps the program running until ctx ends.
func (i *instance) run(ctx context.Context, program string) {
	for ctx.Err() == nil {
		p, err := process.Start(ctx, i.dir, program, i.env...)
		if err != nil {
			// Not starting at all is a finding, too.
			if ctx.Err() == nil {
				i.found(err)
			}
			traffic.Pause(ctx, time.Second)
			continue
		}

		i.process.Store(p)

		select {
		case <-ctx.Done():
			p.Stop()
			return
		case <-p.Ended:
		}

		// Only an end that we did not cause is a finding.
		i.process.Store(nil)
		if !i.killed.Swap(false) {
			i.found(p.Err())
		}
		traffic.Pause(ctx, i.pause)
	}
}

func (i *instance) found(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = append(i.ended, err.Error())
}

func (i *instance) findings() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return append([]string(nil), i.ended...)
}

// kill ends the program as a crash would, and reports whether it ran.
func (i *instance) kill() bool {
	p := i.process.Load()
	if p != nil {
		i.killed.Store(true) // first, so that run does not report this end
		p.Kill()
	}
	return p != nil
}

// leads reports whether a relay says of itself that it is the leader.
func (i *instance) leads(ctx context.Context) bool {
	p := i.process.Load()
	if p == nil {
		return false
	}

	metrics, err := rig.Metrics(ctx, p.Admin)
	leader := metrics["relay_leader"].GetMetric()
	return err == nil && len(leader) == 1 && leader[0].GetGauge().GetValue() == 1
}
