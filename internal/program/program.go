// Package program is what every program of this module does around its work: help and flags,
// signals, clear errors, exit codes, tables and JSON. For those that run for long it is also the
// health check of a container without a shell.
package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

// Program is one program of the service.
type Program struct {
	Name    string // of the binary
	About   string // one or two sentences for -h
	Usage   string // its variables, for -h
	Example string // command lines for -h, indented by two spaces

	// Run is the program. It returns when ctx ends and everything it accepted is finished. Its error is
	// shown to the operator, one line per problem.
	Run func(ctx context.Context, getenv func(string) string, stderr io.Writer) error
	// Flags adds those that Run reads; may be nil.
	Flags func(root *cobra.Command)
	// Commands make what else it can do.
	Commands []func(getenv func(string) string) *cobra.Command
	// Probe returns the address that serves /readyz.
	Probe func(getenv func(string) string) (addr string, err error)
}

// Main runs p with its command-line arguments and returns the exit code: 0, or 1 after printing one
// line per problem.
func Main(p Program, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use: p.Name,
		Long: p.About + "\n\nWithout a command it runs until SIGINT or SIGTERM, then finishes " +
			"accepted work; a second signal quits.\n\nVariables:\n" + p.Usage,
		Example: p.Example + "\n  " + p.Name + " health",
		RunE: func(c *cobra.Command, _ []string) error {
			return p.Run(c.Context(), getenv, stderr)
		},
	}

	if p.Flags != nil {
		p.Flags(root)
	}

	// A container without a shell has nothing else to ask with.
	root.AddCommand(&cobra.Command{
		Use:     "health",
		Short:   "Ask a running " + p.Name + " whether it is ready: exit code 0 if so, else 1",
		Example: "  " + p.Name + " health",
		RunE:    func(c *cobra.Command, _ []string) error { return p.health(c.Context(), getenv) },
	})

	for _, command := range p.Commands {
		root.AddCommand(command(getenv))
	}

	if err := Execute(context.Background(), root, args, stdout, stderr); err != nil {
		Complain(stderr, p.Name, err)
		return 1
	}
	return 0
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
