package local

import (
	"context"
	"fmt"
	"sync"
	"syscall"

	"github.com/oncepay/oncepay/internal/process"
)

// Program is a process of the service. Its end is a failure, unless we end it.
type Program struct {
	Name string // relay-1
	Kind string // relay

	service *Service
	turn    sync.Mutex // held by who starts or ends it

	mu      sync.Mutex // for the fields below
	state   State
	process *process.Process // nil: it is down, or starting
	admin   string           // it gets it again when it is restarted
}

// State is what we did with a process. Whether it works is for its probes to say.
type State string

// The states of a program.
const (
	Running  State = "running"
	Frozen   State = "frozen"
	Starting State = "starting"
	Down     State = "down"
)

// State returns the program's.
func (p *Program) State() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// Pid returns the process id, or 0 if it does not run.
func (p *Program) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process == nil {
		return 0
	}
	return p.process.Pid()
}

// Admin returns the address of the private listener; fakepsp has none.
func (p *Program) Admin() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.admin
}

// Start starts the program and returns when it serves. If it runs already, that is all.
func (p *Program) Start(ctx context.Context) error {
	p.turn.Lock()
	defer p.turn.Unlock()
	if p.State() != Down {
		return nil
	}

	env := p.service.environment(p.Kind)
	if admin := p.Admin(); admin != "" {
		env = append(env, "ADMIN_ADDR="+admin)
	}

	p.become(Starting)
	started, err := process.StartAs(ctx, p.service.Dir, p.Kind, p.Name, env...)
	if err != nil {
		p.become(Down)
		return err
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	p.process, p.admin, p.state = started, started.Admin, Running
	go p.watch(started)
	return nil
}

// watch reports the end of a process that we have not ended.
func (p *Program) watch(started *process.Process) {
	<-started.Ended

	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process == started {
		p.process, p.state = nil, Down
		p.service.ended <- started.Err()
	}
}

// Kill ends the program as a crash would.
func (p *Program) Kill() error {
	p.turn.Lock()
	defer p.turn.Unlock()

	running := p.take()
	if running == nil {
		return fmt.Errorf("%s is down", p.Name)
	}
	running.Kill()
	return nil
}

// take makes the process the caller's, who ends it; nil: none runs.
func (p *Program) take() *process.Process {
	p.mu.Lock()
	defer p.mu.Unlock()

	running := p.process
	p.process, p.state = nil, Down // so that watch does not report its end
	return running
}

// Freeze stops the program where it is; it loses nothing, and answers nothing.
func (p *Program) Freeze() error { return p.signal(syscall.SIGSTOP, Running, Frozen) }

// Thaw lets it go on.
func (p *Program) Thaw() error { return p.signal(syscall.SIGCONT, Frozen, Running) }

func (p *Program) signal(s syscall.Signal, from, to State) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state != from {
		return fmt.Errorf("%s is %s", p.Name, p.state)
	}
	if err := syscall.Kill(p.process.Pid(), s); err != nil {
		return fmt.Errorf("signal %s: %w", p.Name, err)
	}
	p.state = to
	return nil
}

// stop lets the program finish what it has accepted.
func (p *Program) stop() {
	p.turn.Lock()
	defer p.turn.Unlock()
	_ = p.Thaw() // a frozen process would not see the signal

	if running := p.take(); running != nil {
		running.Stop()
	}
}

func (p *Program) become(s State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = s
}
