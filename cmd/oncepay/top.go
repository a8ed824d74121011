package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/top"
	"github.com/oncepay/oncepay/internal/top/screen"
)

// adminPorts are those of docker-compose.yml.
var adminPorts = map[string]string{
	top.API: "9090", top.Relay: "9091", top.Consumer: "9092", top.Worker: "9093",
}

// topOptions are the flags of top.
type topOptions struct {
	addresses map[string][]string // by program
	every     time.Duration
	once      bool
}

func newTop() *cobra.Command {
	c := &cobra.Command{
		Use:   "top",
		Short: "Watch the programs: rates, latencies, what waits, and what is wrong now",
		Long: `Shows the chain on one screen, from what the programs show at /metrics (ADMIN_ADDR): requests,
outbox, relay, consumer and worker, and what is wrong now by the symptoms of docs/operating.md, with
the heading to read. It needs neither the database nor a credential, and changes nothing.

Each of --api, --relay, --consumer and --worker takes the addresses of all instances, separated by
commas or in several flags. Without a terminal, or with --once or --json, it looks twice, as far
apart as --every says, writes one screen, and ends. It fails if no program can be reached.

Keys: q quits, space pauses, ? explains. NO_COLOR leaves the colors out.`,
		Example: "  oncepay top\n" +
			"  oncepay top --once\n" +
			"  oncepay top --relay 10.0.0.5:9091,10.0.0.6:9091 --every 5s\n" +
			"  oncepay top --json",
		GroupID: asOperator,
	}

	o := topOptions{addresses: map[string][]string{}, every: 2 * time.Second}
	for _, name := range top.Programs {
		addresses := []string{}
		program.Flag(c, &addresses, name, "URL",
			"where "+name+" shows its metrics (without it 127.0.0.1:"+adminPorts[name]+")",
			func(s string) ([]string, error) {
				more, err := parseAddresses(s)
				o.addresses[name] = append(o.addresses[name], more...)
				return o.addresses[name], err
			})
	}
	program.Flag(c, &o.every, "every", "DURATION", "time between two looks (without it 2s)", parseEvery)
	c.Flags().BoolVar(&o.once, "once", false, "write one screen as text, and end")

	c.RunE = func(c *cobra.Command, _ []string) error { return o.run(c) }
	return c
}

// parseAddresses reads hosts and ports, or URLs that have nothing but these.
func parseAddresses(s string) (all []string, err error) {
	for one := range strings.SplitSeq(s, ",") {
		bare := strings.TrimSuffix(strings.TrimSuffix(one, "/"), "/metrics")
		if u, err := url.Parse(bare); err == nil && u.Scheme == "http" && u.Path == "" && u.RawQuery == "" {
			bare = u.Host
		}
		if host, port, err := net.SplitHostPort(bare); err != nil || host == "" || port == "" {
			return nil, errors.New("it must be an address such as 127.0.0.1:9090 or http://relay:9091/metrics")
		}
		all = append(all, bare)
	}
	return all, nil
}

func parseEvery(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 500*time.Millisecond || d > time.Minute {
		return 0, errors.New("it must be a duration from 500ms to 1m, such as 2s")
	}
	return d, nil
}

// targets are the instances to look at, in the order of the chain.
func (o topOptions) targets() (all []top.Target) {
	for _, name := range top.Programs {
		addresses := o.addresses[name]
		if len(addresses) == 0 {
			addresses = []string{"127.0.0.1:" + adminPorts[name]}
		}
		for _, a := range addresses {
			all = append(all, top.Target{Program: name, Address: a})
		}
	}
	return all
}

func (o topOptions) run(c *cobra.Command) error {
	watch := top.NewWatch(o.targets())
	asJSON, _ := c.Flags().GetBool("json")

	if out, is := c.OutOrStdout().(*os.File); is && !o.once && !asJSON && term.IsTerminal(out.Fd()) {
		return watchLive(c.Context(), watch, o.every, out)
	}

	f, err := o.lookTwice(c.Context(), watch)
	if err != nil {
		return err
	}
	return program.Show(c, f, func(w io.Writer) {
		fmt.Fprintln(w, screen.Draw(screen.View{Figures: f, Every: o.every}))
	})
}

// lookTwice returns figures with rates.
func (o topOptions) lookTwice(ctx context.Context, watch *top.Watch) (top.Figures, error) {
	watch.Look(ctx)
	if err := reachable(watch.Figures()); err != nil {
		return top.Figures{}, err
	}

	pause := time.NewTimer(o.every)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
		return top.Figures{}, ctx.Err()
	}

	watch.Look(ctx)
	f := watch.Figures()
	return f, reachable(f)
}

// reachable returns an error unless a program answered.
func reachable(f top.Figures) error {
	for _, i := range f.Instances {
		if i.Problem == "" {
			return nil
		}
	}

	first := f.Instances[0]
	return fmt.Errorf("no program can be reached, %s at %s: %s: are --api, --relay, --consumer and --worker right?",
		first.Program, first.Address, first.Problem)
}
