// Package rig is what the benchmark and the soak have in common: a command with flags, servers to
// run the programs against, and what a running program shows of itself.
package rig

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Command is a program without its name. It returns flag.ErrHelp after it has shown its help.
type Command func(ctx context.Context, args []string, stdout io.Writer) error

// Main runs a command until it ends or is interrupted, and exits.
func Main(name string, args []string, command Command) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := Run(ctx, name, args, os.Stdout, os.Stderr, command)
	stop()
	os.Exit(code)
}

// Run returns the exit code. Each line of an error goes to stderr behind the command's name.
func Run(
	ctx context.Context, name string, args []string, stdout, stderr io.Writer, command Command,
) int {
	err := command(ctx, args, stdout)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}

	fmt.Fprintln(stderr, name+": "+strings.ReplaceAll(err.Error(), "\n", "\n"+name+": "))
	return 1
}

// Flags are those of a command.
type Flags struct{ *flag.FlagSet }

// NewFlags has none yet.
func NewFlags(name string) Flags { return Flags{flag.NewFlagSet(name, flag.ContinueOnError)} }

// Int defines a flag whose value must lie between least and most.
func (f Flags) Int(p *int, name string, value, least, most int, usage string) {
	*p = value
	usage = fmt.Sprintf("%s; %d to %d (default %d)", usage, least, most, value)

	f.Func(name, usage, func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < least || n > most {
			return fmt.Errorf("must be %d to %d", least, most)
		}

		*p = n
		return nil
	})
}

// Parse reads flags only: there are no other arguments. The usage precedes the list of flags.
func (f Flags) Parse(usage string, args []string, stdout io.Writer) error {
	f.SetOutput(io.Discard)

	err := f.FlagSet.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		f.SetOutput(stdout)
		f.PrintDefaults()
		return err
	case err == nil && f.NArg() > 0:
		err = fmt.Errorf("unknown argument %q", f.Arg(0))
	}

	if err != nil {
		return fmt.Errorf("%w (%s -h shows the flags)", err, f.Name())
	}

	return nil
}

// Progress prints lines with the seconds that have passed.
type Progress struct {
	io.Writer
	begun time.Time
}

// NewProgress begins to count.
func NewProgress(out io.Writer) Progress { return Progress{out, time.Now()} }

// Say prints a line.
func (p Progress) Say(format string, args ...any) {
	fmt.Fprintf(p, "%5.0fs  %s\n", time.Since(p.begun).Seconds(), fmt.Sprintf(format, args...))
}

// Wait returns at that time, or when ctx ends.
func Wait(ctx context.Context, until time.Time) {
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Until polls ten times a second until the condition holds.
func Until(
	ctx context.Context, most time.Duration, what string, holds func(context.Context) bool,
) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()

	for !holds(ctx) {
		if Wait(ctx, time.Now().Add(100*time.Millisecond)); ctx.Err() != nil {
			return fmt.Errorf("waited in vain for %s until %s", most, what)
		}
	}

	return nil
}
