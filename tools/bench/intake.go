package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oncepay/oncepay/internal/traffic"
	"github.com/oncepay/oncepay/tools/rig"
)

// scenario is an API of its own on a fresh database, and the loads it gets one after the other.
type scenario struct {
	group     bool // group commit; else BATCH_MAX=1 with the best pool
	limits    bool // the API's own limits for a tenant; else none is reached
	stretches []stretch
}

// stretch is a load whose figures begin with its name.
type stretch struct {
	name        string
	connections int  // 0: those of the flags
	open        bool // open loop at the rate of the flags
	replay      bool // repeat what the stretch before has paid
	hot         bool // all to one account
	pairs       bool // authorize and capture
	refunds     bool // of what the stretch before has captured
	quiet       bool // a second tenant that sends little
	flood       bool // beside it, the first tenant sends all it can
	cards       bool // by card, in an open loop at the rate of steadyCards
	beside      int  // card payments a second beside it
	warm        time.Duration
}

const (
	warm             = time.Second
	floodConnections = 512 // more than a tenant's share
	quietRate        = 50  // nothing beside the flood, and enough for a p99
	quietConnections = 32
)

// scenarios are one round. What is compared is measured one right after the other.
var scenarios = []scenario{
	{stretches: []stretch{{name: "single"}}},
	{group: true, stretches: []stretch{{name: "group"}, {name: "replay", replay: true}}},
	{stretches: []stretch{
		{name: "single_pairs", pairs: true}, {name: "single_refunds", refunds: true},
	}},
	{group: true, stretches: []stretch{
		{name: "group_pairs", pairs: true}, {name: "group_refunds", refunds: true},
	}},
	{stretches: []stretch{{name: "single_1conn", connections: 1}}},
	{group: true, stretches: []stretch{{name: "group_1conn", connections: 1}}},
	{stretches: []stretch{{name: "open_single", open: true}}},
	{group: true, stretches: []stretch{
		{name: "open_group", open: true}, {name: "open_replay", open: true, replay: true},
	}},
	{group: true, limits: true, stretches: []stretch{
		{name: "flood_alone", quiet: true}, {name: "flood", quiet: true, flood: true},
	}},
	{group: true, stretches: []stretch{{name: "hot", hot: true}}},
}

// smoke is a round of a smoke run.
var smoke = []scenario{
	{stretches: []stretch{{name: "single"}}}, {group: true, stretches: []stretch{{name: "group"}}},
}

// intakeBench is one run of intake.
type intakeBench struct {
	*bench
	shop, neighbour traffic.Seed
	pool            int     // best for BATCH_MAX=1
	peak            float64 // memory of the API with group commit, MiB
}

// intake is the benchmark from top to bottom.
func intake(ctx context.Context, o options, stdout io.Writer) (err error) {
	started, err := start(ctx, o, stdout, "api", "oncepay")
	defer func() { err = errors.Join(err, started.stop()) }()
	if err != nil {
		return err
	}

	b := &intakeBench{bench: started}
	b.Say("%s", b.machine)
	b.Say("opening %d accounts", b.accounts)
	// Both tenants are in the database that each measurement copies.
	if b.shop, err = b.seed(ctx, tenant, b.accounts); err != nil {
		return err
	}

	if b.neighbour, err = b.seed(ctx, tenant+"-neighbour", 100); err != nil {
		return err
	}
	if err := rig.Execute(ctx, b.owner(template), `VACUUM ANALYZE`); err != nil {
		return err
	}

	if b.contended {
		return b.contend(ctx)
	}

	list := smoke
	if b.pool = 16; !b.smoke {
		list = scenarios
		if err := b.findPool(ctx); err != nil {
			return err
		}
	}

	for round := range b.rounds {
		for _, s := range list {
			if _, err := b.run(ctx, s); err != nil {
				return fmt.Errorf("round %d: %w", round+1, err)
			}
		}
	}

	if b.stored > 0 {
		if err := b.measureStored(ctx); err != nil {
			return err
		}
	}

	b.figures.add("peak", measured{"rss_mib": b.peak}, "")
	b.report()
	if b.smoke { // a pause of the machine costs one round: the best of each
		ratio := slices.Max(b.figures["group_per_s"]) / slices.Max(b.figures["single_per_s"])
		if !(ratio >= 2) {
			return fmt.Errorf("group commit is only %.2f times as fast: something is broken", ratio)
		}
	}

	return nil
}

const (
	tenant = "bench"
	funds  = "1000000000000" // of each account: more than any run moves
)

// seed opens accounts in the database that is copied.
func (b *intakeBench) seed(
	ctx context.Context, name string, accounts int, more ...string,
) (traffic.Seed, error) {
	return rig.Seed(ctx, b.dir, b.owner(template), append([]string{
		"seed", "--tenant", name, "--client", "load", "--currency", "USD",
		"--accounts", strconv.Itoa(accounts), "--fund", funds, "--json",
	}, more...))
}

// findPool tries how many connections BATCH_MAX=1 needs: it is compared at its best.
func (b *intakeBench) findPool(ctx context.Context) error {
	best, chosen := 0.0, 0
	for _, b.pool = range []int{4, 8, 16, 32, 64} {
		name := fmt.Sprintf("pool of %d", b.pool)
		m, err := b.run(ctx, scenario{stretches: []stretch{{name: name}}})
		if err != nil {
			return err
		}

		if m["per_s"] > best {
			best, chosen = m["per_s"], b.pool
		}
	}

	// The open loop must leave BATCH_MAX=1 room, or it measures a queue.
	b.pool = chosen
	b.Say("the best pool for BATCH_MAX=1 has %d connections", chosen)
	if b.rate == 0 {
		b.rate = int(best / 2)
	}
	return nil
}

// run measures a scenario and returns its last stretch.
func (b *intakeBench) run(ctx context.Context, s scenario) (m measured, err error) {
	database, drop, err := b.fresh(ctx)
	if err != nil {
		return nil, err
	}
	defer drop()

	err = b.session(ctx, s, database, func(api *session) error {
		for _, st := range s.stretches {
			st.warm = warm
			if m, err = api.measure(ctx, st); err != nil {
				return fmt.Errorf("%s: %w", st.name, err)
			}
		}

		return nil
	})
	return m, err
}

// report prints the table and, as the last line, the JSON.
func (b *intakeBench) report() {
	fmt.Fprintf(b, "\n%s, after: %s\n", b.machine, loadAverage())
	fmt.Fprintf(b, "%d connections, %d accounts, BATCH_MAX=1 with DATABASE_POOL=%d, %d rounds of %d s, "+
		"open loop %d/s %s\n", b.connections, b.accounts, b.pool, b.rounds, b.seconds, b.rate,
		strings.Join(b.variables, " "))

	members := map[string]any{
		"rounds": b.rounds, "pool": b.pool, "rate": b.rate, "load_average": loadAverage(),
	}
	b.figures.show(b, intakeTable, "", members)
	writeJSON(b, members)
}
