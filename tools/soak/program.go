package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/traffic"
)

// instance is a program that is restarted when it ends, as a supervisor does. Ending by itself is a
// finding: an operator was needed, if only to configure the supervisor.
type instance struct {
	name string // relay-1
	dir  string // its binary and log
	env  []string

	mu      sync.Mutex
	process *process.Process // nil: not running
	killed  bool             // by us
	ended   []string         // what it said when it ended by itself
}

// restartAfter is longer than the lease, so that the standby takes over and not the killed relay.
const restartAfter = 5 * time.Second

// newInstance gives a program a directory of its own, so that two of a kind have two logs.
func newInstance(dir, program, name string, env ...string) (*instance, error) {
	i := &instance{name: name, dir: filepath.Join(dir, name), env: env}
	if err := os.Mkdir(i.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make a directory: %w", err)
	}
	if err := os.Symlink(filepath.Join(dir, program), filepath.Join(i.dir, program)); err != nil {
		return nil, fmt.Errorf("link %s: %w", program, err)
	}
	return i, nil
}

// run keeps the program running until ctx ends. started is called after each start.
func (i *instance) run(ctx context.Context, program string, started func(*process.Process)) {
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

		i.set(p)
		started(p)

		select {
		case <-ctx.Done():
			p.Stop()
			return
		case <-p.Ended:
		}

		// Only an end that we did not cause is a finding.
		if !i.set(nil) {
			i.found(p.Err())
		}
		traffic.Pause(ctx, restartAfter)
	}
}

// set records what runs, and reports whether we killed what ran before.
func (i *instance) set(p *process.Process) (killed bool) {
	i.mu.Lock()
	defer i.mu.Unlock()

	killed = i.killed
	i.process, i.killed = p, false
	return killed
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
	i.mu.Lock()
	// Mark it before the kill, so that run does not report this end.
	p := i.process
	i.killed = p != nil
	i.mu.Unlock()

	if p != nil {
		p.Kill()
	}
	return p != nil
}

func (i *instance) runs() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.process != nil
}

// leads reports whether a relay says of itself that it is the leader.
func (i *instance) leads(ctx context.Context) bool {
	i.mu.Lock()
	p := i.process
	i.mu.Unlock()
	if p == nil {
		return false
	}

	text, err := get(ctx, "http://"+p.Admin+"/metrics")
	return err == nil && strings.Contains(text, "\nrelay_leader 1\n")
}

func get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()

	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", fmt.Errorf("ask %s: %w", url, err)
	}

	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", fmt.Errorf("ask %s: %w", url, err)
	}
	defer response.Body.Close()

	text, err := io.ReadAll(response.Body)
	if err != nil {
		return "", fmt.Errorf("ask %s: %w", url, err)
	}
	return string(text), nil
}
