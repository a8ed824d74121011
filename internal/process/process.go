// Package process runs the programs of this module as child processes, for the demo and for tests
// that need real programs, signals and crashes.
package process

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Build builds programs of this module ("api", "relay" …) into dir. It works from any folder of the
// checkout.
func Build(ctx context.Context, dir string, flags []string, programs ...string) error {
	module, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()

	root := filepath.Dir(strings.TrimSpace(string(module)))
	if _, statErr := os.Stat(filepath.Join(root, "cmd", "api")); err != nil || statErr != nil {
		return errors.New("build the programs: this is no checkout of oncepay, or Go is not installed")
	}

	args := append([]string{"build", "-o", dir + string(filepath.Separator)}, flags...)
	for _, p := range programs {
		args = append(args, "./cmd/"+p)
	}

	cmd := exec.CommandContext(ctx, "go", args...)
	// Interrupt rather than kill: go build has a temporary directory to remove.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	cmd.Dir = root

	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, bytes.TrimSpace(out))
	}
	return nil
}

// Process is a running program.
type Process struct {
	Name  string
	Addr  string        // where it serves HTTP, as the api logs it when it has started
	Admin string        // its private listener
	Ended chan struct{} // closed when it has ended

	cmd  *exec.Cmd
	file string // its log
	log  int64  // offset in its log where this process began
	once sync.Once
}

// A program logs within startTimeout that it has started or cannot start. It drains within
// stopTimeout.
const (
	startTimeout = 30 * time.Second
	stopTimeout  = 15 * time.Second
)

// FreeAddress returns an address that a program can listen on, the same each time that it is started.
// Its port is below those that a system gives to whoever asks for any (from 32768 on Linux, 49152
// elsewhere), so that none of these has it while the program is down.
func FreeAddress() (address string, err error) {
	for range 20 {
		address = fmt.Sprintf("127.0.0.1:%d", 20_000+rand.IntN(12_000))

		var l net.Listener
		if l, err = net.Listen("tcp", address); err == nil {
			return address, l.Close()
		}
	}
	return "", fmt.Errorf("find a free port: %w", err)
}

// Start runs the program of that name in dir, with env alone as its environment. It returns when
// the program's log says that it has started and where it listens. The log goes to dir/name.log.
// The caller calls Stop.
func Start(ctx context.Context, dir, name string, env ...string) (*Process, error) {
	return StartAs(ctx, dir, name, name, env...)
}

// late is what a program says whose database or broker did not answer in the three seconds of its
// start, whose database ended its session (57P01), or whose port another program was faster to take.
var late = regexp.MustCompile(`no answer from|deadline exceeded|i/o timeout|57P01|address already in use`)

// WasLate reports whether a program ended, saying so, only because the machine stood still while it
// opened what it needs. It has done nothing, and may be run again.
func WasLate(said string) bool { return late.MatchString(said) }

// Output runs a program to its end, up to three times if it was late, and returns what it wrote to
// standard output. The error has the rest.
func Output(ctx context.Context, env []string, program string, args ...string) ([]byte, error) {
	for tries := 1; ; tries++ {
		var problems bytes.Buffer
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Env, cmd.Stderr = env, &problems

		out, err := cmd.Output()
		if err == nil {
			return out, nil
		}
		if tries == 3 || !WasLate(problems.String()) {
			return nil, fmt.Errorf("%s: %w\n%s%s", program, err, out, problems.String())
		}
	}
}

// StartAs is Start for one of several processes of a program: name is the process's, and its log's. A
// program that was too slow is started up to three times, as a supervisor would: a machine that runs
// all of them may stand still for some seconds.
func StartAs(ctx context.Context, dir, program, name string, env ...string) (*Process, error) {
	for tries := 1; ; tries++ {
		p, err := startAs(ctx, dir, program, name, env...)
		if err == nil || tries == 3 || ctx.Err() != nil || !WasLate(err.Error()) {
			return p, err
		}
	}
}

func startAs(ctx context.Context, dir, program, name string, env ...string) (*Process, error) {
	// We wait for a line of the log, so the log must be JSON and contain it.
	for _, v := range env {
		switch v {
		case "LOG_LEVEL=warn", "LOG_LEVEL=error", "LOG_FORMAT=text":
			return nil, fmt.Errorf("start %s: with %s its log would not say that it has started", name, v)
		}
	}

	file := filepath.Join(dir, name+".log")
	log, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}

	p := &Process{
		Name: name, cmd: exec.Command(filepath.Join(dir, program)), Ended: make(chan struct{}),
		file: file,
	}
	if p.log, err = log.Seek(0, io.SeekEnd); err != nil {
		return nil, errors.Join(fmt.Errorf("read log of %s: %w", name, err), log.Close())
	}

	// Who starts it again may ask for the same address.
	admin, err := FreeAddress()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), log.Close())
	}
	p.cmd.Env = append([]string{"ADMIN_ADDR=" + admin}, env...)

	// In a group of its own: a terminal's Ctrl-C reaches only us, and we stop the programs in
	// order.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}

	stderr, err := p.cmd.StderrPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), log.Close())
	}

	started := make(chan addresses, 1)
	go func() {
		defer close(p.Ended)
		defer log.Close()
		scan(io.TeeReader(stderr, log), program+" started", started)
		_ = p.cmd.Wait() // how it ended is in ProcessState
	}()

	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()

	select {
	case a := <-started:
		p.Addr, p.Admin = a.HTTP, a.Admin
		return p, nil
	case <-p.Ended:
		return nil, fmt.Errorf("%s did not start: %w", name, p.Err())
	case <-timeout.C:
		p.Stop()
		return nil, fmt.Errorf("%s did not start within %s", name, startTimeout)
	case <-ctx.Done():
		p.Stop()
		return nil, fmt.Errorf("start %s: %w", name, context.Cause(ctx))
	}
}

type addresses struct {
	Msg   string `json:"msg"`
	HTTP  string `json:"http_addr"`
	Admin string `json:"admin_addr"`
}

// scan reads a log to its end, and sends the addresses in the first line whose message is msg.
func scan(log io.Reader, msg string, started chan<- addresses) {
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		var a addresses
		if json.Unmarshal(lines.Bytes(), &a) == nil && a.Msg == msg {
			started <- a
			break
		}
	}

	// A program whose log is not read would block.
	_, _ = io.Copy(io.Discard, log)
}

// Pid returns the process id, for signals that the caller sends.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Err waits until the process has ended, and returns how, with the last lines of its log.
func (p *Process) Err() error {
	<-p.Ended
	text, _ := os.ReadFile(p.file)

	// The log has earlier runs too: skip to ours.
	lines := strings.Split(strings.TrimSpace(string(text[min(p.log, int64(len(text))):])), "\n")
	return fmt.Errorf("%s ended (%v):\n%s",
		p.Name, p.cmd.ProcessState, strings.Join(lines[max(0, len(lines)-10):], "\n"))
}

// Stop lets the program finish what it has accepted and waits for its end, and kills it after
// stopTimeout. A second call does nothing.
func (p *Process) Stop() {
	p.once.Do(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already

		kill := time.AfterFunc(stopTimeout, func() { _ = p.cmd.Process.Kill() })
		<-p.Ended
		kill.Stop()
	})
}

// Kill ends the program at once, as a crash would, and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.Ended
}
