// Package program is what every long-running program of this module does around its run function:
// flags, signals, clear errors, exit codes, and the health check of a container without a shell.
package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Program is one program of the service.
type Program struct {
	Name    string // of the binary
	About   string // one or two sentences for -h
	Usage   string // its variables, for -h
	Example string // a command line, for -h

	// Run is the program. It returns when ctx ends and everything it accepted is finished. Its error is
	// shown to the operator, one line per problem.
	Run func(ctx context.Context, getenv func(string) string, stderr io.Writer) error
	// Commands are what else it can do, by their first argument.
	Commands map[string]Command
	// Probe returns the address that serves /readyz.
	Probe func(getenv func(string) string) (addr string, err error)
}

// Command does something once and returns.
type Command struct {
	About string // for -h
	Run   func(ctx context.Context, args []string, getenv func(string) string, stdout io.Writer) error
}

// Main runs p with its command-line arguments and returns the exit code: 0, or 1 after printing one
// line per problem.
//
// SIGINT and SIGTERM end ctx, so that Run drains. A second one ends the process at once.
func Main(p Program, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // after the first signal, the next one has its default effect

	var err error
	switch {
	case len(args) == 0:
		err = p.Run(ctx, getenv, stderr)
	case len(args) == 1 && (args[0] == "-h" || args[0] == "-help" || args[0] == "--help"):
		fmt.Fprint(stdout, p.help())
	case len(args) == 1 && args[0] == "health":
		err = p.health(ctx, getenv)
	case p.Commands[args[0]].Run != nil:
		err = p.Commands[args[0]].Run(ctx, args[1:], getenv, stdout)
	default:
		err = fmt.Errorf("unknown argument %q: see %s -h", args[0], p.Name)
	}
	if err == nil {
		return 0
	}

	// Errors that were found together are joined by newlines.
	for line := range strings.Lines(strings.TrimSpace(err.Error())) {
		fmt.Fprintf(stderr, "%s: %s\n", p.Name, strings.TrimSpace(line))
	}
	return 1
}

func (p Program) help() string {
	return fmt.Sprintf(`%s

Usage:
  %[2]s           run until SIGINT or SIGTERM, then finish accepted work; a second signal quits
  %[2]s health    ask a running %[2]s whether it is ready: exit code 0 if so, else 1
  %[2]s -h        print this text
%[5]s
Variables:
%[3]s
Example:
  %[4]s
`, p.About, p.Name, p.Usage, p.Example, p.commands())
}

func (p Program) commands() (lines string) {
	for _, name := range slices.Sorted(maps.Keys(p.Commands)) {
		lines += fmt.Sprintf("  %s %s    %s\n", p.Name, name, p.Commands[name].About)
	}
	return lines
}

// health asks the instance that runs with the same environment whether it is ready.
func (p Program) health(ctx context.Context, getenv func(string) string) error {
	addr, err := p.Probe(getenv)
	if err != nil {
		return err
	}

	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("read address: %w", err)
	}

	// An instance that listens on every address listens on this one, too.
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	url := "http://" + net.JoinHostPort(host, port) + "/readyz"

	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("ask for health: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("ask for health: %w", err)
	}
	defer response.Body.Close()

	if response.StatusCode != http.StatusOK {
		reason, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return errors.New("not ready: " + string(reason))
	}
	return nil
}
