// Command mutants shows that the tests would notice: it plants the bugs of test/mutants one by one and runs the tests that
// are to fail with them. The working tree is never touched, see `go help build` on -overlay.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const usage = `Usage: mutants [-run REGEXP] [-list] [-timeout D]

Runs the tests that the bugs of test/mutants name, without any bug: they must pass. Then plants one bug after the other
and runs its tests again. Prints a line for each, at the end those that were not caught, and exits with 1 unless all are:
  caught     a test failed, or hung
  SURVIVED   all tests passed
  BROKEN     the bug cannot be planted, does not compile, or its tests do not pass without it

  -run REGEXP   only the bugs whose name matches
  -list         list them
  -timeout D    how long the tests of one bug may take; a hang counts as caught (default 2m)

Examples:
  make mutants
  go run ./tools/mutants -list
  go run ./test/servers -- go run ./tools/mutants -run 'credential-|claim-without-lock'
`

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are printed below, once
	only, list := flags.String("run", "", ""), flags.Bool("list", false, "")
	r := runner{stdout: stdout}
	flags.DurationVar(&r.timeout, "timeout", 2*time.Minute, "")
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return 0
	}

	wanted, malformed := regexp.Compile(*only)
	if err = errors.Join(err, malformed); err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q (mutants -h explains it)", flags.Arg(0))
	}
	var all []mutant
	if err == nil {
		all, err = readMutants("test/mutants")
	}
	if err != nil {
		fmt.Fprintln(stderr, "mutants:", err)
		return 1
	}

	for _, m := range all {
		if wanted.MatchString(m.name) {
			r.mutants = append(r.mutants, m)
		}
	}

	if *list {
		for _, m := range r.mutants {
			fmt.Fprintf(stdout, "%s (%s): %s\n", m.name, m.file, m.what)
		}
		return 0
	}

	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	return r.run(ctx)
}

type runner struct {
	mutants []mutant
	timeout time.Duration
	stdout  io.Writer

	baseline map[string]result // of the tests of a package without any bug
	mu       sync.Mutex
	counts   map[string]int // by verdict
	missed   []string       // verdicts and names of those not caught
}

const (
	caught   = "caught"
	survived = "SURVIVED"
	broken   = "BROKEN"

	baselineTimeout = 10 * time.Minute // of all tests of a package
)

func (r *runner) run(ctx context.Context) int {
	began := time.Now()
	fmt.Fprintf(r.stdout, "%d bugs; first their tests without them\n", len(r.mutants))
	r.measureBaseline(ctx)
	fmt.Fprintf(r.stdout, "%s for that; now with them\n", time.Since(began).Round(time.Second))

	r.counts = map[string]int{}
	each(r.mutants, func(m mutant) {
		if ctx.Err() == nil {
			r.report(ctx, &m)
		}
	})
	fmt.Fprintf(r.stdout, "%d of %d caught, %d survived, %d broken, in %s\n", r.counts[caught], len(r.mutants),
		r.counts[survived], r.counts[broken], time.Since(began).Round(time.Second))
	slices.Sort(r.missed)
	for _, m := range r.missed {
		fmt.Fprintln(r.stdout, " ", m)
	}

	if len(r.mutants) == 0 || r.counts[caught] < len(r.mutants) {
		return 1
	}

	return 0
}

func (r *runner) measureBaseline(ctx context.Context) {
	patterns := map[string][]string{}
	var packages []string
	for _, m := range r.mutants {
		for _, p := range m.packages {
			if patterns[p] == nil {
				packages = append(packages, p)
			}
			patterns[p] = append(patterns[p], m.tests)
		}
	}

	r.baseline = map[string]result{}
	each(packages, func(p string) {
		result := goTest(ctx, "", strings.Join(patterns[p], "|"), baselineTimeout, p)

		r.mu.Lock()
		defer r.mu.Unlock()
		r.baseline[p] = result
		fmt.Fprintf(r.stdout, "(%d/%d) %s\n", len(r.baseline), len(packages), p)
	})
}

func (r *runner) report(ctx context.Context, m *mutant) {
	began := time.Now()
	verdict, why := r.try(ctx, m)
	if ctx.Err() != nil {
		return // what was stopped failed for that reason
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[verdict]++
	if verdict != caught {
		r.missed = append(r.missed, fmt.Sprintf("%-8s %s", verdict, m.name))
	}
	tried := r.counts[caught] + r.counts[survived] + r.counts[broken]
	fmt.Fprintf(r.stdout, "[%d/%d] %-8s %5.1fs %s: %.160s\n", tried, len(r.mutants), verdict, time.Since(began).Seconds(), m.name, why)
}

// try plants a mutant and returns the verdict and its reason.
func (r *runner) try(ctx context.Context, m *mutant) (verdict, why string) {
	if err := m.check(r.baseline); err != nil {
		return broken, err.Error()
	}

	overlay, remove, err := m.overlay()
	if err != nil {
		return broken, err.Error()
	}
	defer remove()

	result := goTest(ctx, overlay, m.tests, r.timeout, m.packages...)
	switch {
	case result.unbuilt:
		return broken, "does not compile: " + result.failed
	case result.err == nil:
		return survived, m.what
	case result.hung:
		return caught, "hung for " + r.timeout.String()
	}

	return caught, result.failed
}

// each calls do for every item, two at a time.
func each[T any](items []T, do func(T)) {
	var running sync.WaitGroup
	room := make(chan struct{}, 2)
	for _, item := range items {
		room <- struct{}{}
		running.Go(func() {
			defer func() { <-room }()
			do(item)
		})
	}
	running.Wait()
}
