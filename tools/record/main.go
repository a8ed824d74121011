// Command record runs a command and draws what it printed as a terminal that plays it back: an SVG with nothing but text and
// CSS, so that it can be read, searched and compared in a diff.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

const usage = `Usage: record FILE COMMAND [ARGUMENT…]

Runs COMMAND, shows what it prints, and writes FILE, an SVG that plays it back. The exit code is 1 when COMMAND fails.

Example:
  go run ./tools/record docs/demo.svg go run ./cmd/demo -check
`

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 1 && (args[0] == "-h" || args[0] == "-help" || args[0] == "--help") {
		fmt.Fprint(stdout, usage)
		return 0
	}
	if len(args) < 2 {
		fmt.Fprintln(stderr, "record: a file and a command are needed (record -h explains it)")
		return 1
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	lines, err := record(ctx, args[1:], stdout, stderr)
	if err == nil {
		err = os.WriteFile(args[0], draw(args[1:], lines), 0o644)
	}
	if err != nil {
		fmt.Fprintln(stderr, "record:", err)
		return 1
	}
	return 0
}

// line is one that was printed, and when.
type line struct {
	text string
	at   time.Duration
}

func record(ctx context.Context, command []string, stdout, stderr io.Writer) ([]line, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	began := time.Now()
	var lines []line
	scanner := bufio.NewScanner(out)
	for scanner.Scan() {
		lines = append(lines, line{scanner.Text(), time.Since(began)})
		fmt.Fprintln(stdout, scanner.Text())
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("%s: %w", command[0], err)
	}
	return lines, scanner.Err()
}
