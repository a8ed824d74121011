package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// figures are what the rounds showed, by the names they have in the JSON.
type figures map[string][]float64

func (f figures) add(name string, value float64) { f[name] = append(f[name], value) }

func (f figures) last(name string) float64 { return f[name][len(f[name])-1] }

// median is NaN when nothing was measured, or nothing that is a number.
func (f figures) median(name string) float64 {
	values := slices.DeleteFunc(slices.Clone(f[name]), math.IsNaN)
	slices.Sort(values)
	switch n := len(values); {
	case n == 0:
		return math.NaN()
	case n%2 == 1:
		return values[n/2]
	default:
		return (values[n/2-1] + values[n/2]) / 2
	}
}

func (f figures) compareClosed(single, group measured) {
	f.add("single_per_s", single.perSecond)
	f.add("group_per_s", group.perSecond)
	f.add("ratio", group.perSecond/single.perSecond)
	f.add("batch", group.batches.mean())
	f.add("single_api_us", single.apiTime)
	f.add("single_postgres_us", single.dbTime)
	f.add("group_api_us", group.apiTime)
	f.add("group_postgres_us", group.dbTime)
	f.add("generator_us", group.ownTime)
	f.add("cpu_ratio", (single.apiTime+single.dbTime)/(group.apiTime+group.dbTime))
	f.add("single_wal_bytes_per_payment", single.wal)
	f.add("wal_bytes_per_payment", group.wal)
	f.add("new_claim_p50_ms", 1000*group.claims.atMost(.5))
	f.add("new_claim_p99_ms", 1000*group.claims.atMost(.99))
}

func (f figures) compareOpen(single, group, replays measured) {
	f.add("open_single_p50_ms", single.quantile(50))
	f.add("open_single_p99_ms", single.quantile(99))
	f.add("open_group_p50_ms", group.quantile(50))
	f.add("open_group_p99_ms", group.quantile(99))
	f.add("open_p50_ratio", group.quantile(50)/single.quantile(50))
	f.add("open_p99_ratio", group.quantile(99)/single.quantile(99))
	f.add("replay_p99_ms", replays.quantile(99))
	f.add("replay_p99_ratio", replays.quantile(99)/group.quantile(99))
	f.add("claim_p99_ms", 1000*replays.claims.atMost(.99))
	f.add("claim_within_1ms", replays.claims.share(.001))
}

// row of a table: a name of figures, what it is, what it is measured against.
type row struct{ name, what, bar string }

// table is what intake shows, in this order.
var table = []row{
	{"single_per_s", "closed loop, BATCH_MAX=1, payments/s", ""},
	{"group_per_s", "closed loop, group commit, payments/s", ""},
	{"ratio", "  on ÷ off", "≥ 4"},
	{"batch", "  payments in a batch", ""},
	{"single_1conn_p50_ms", "one connection, off, p50 ms", ""},
	{"group_1conn_p50_ms", "one connection, on, p50 ms", ""},
	{"p50_ratio_1conn", "  on ÷ off", "≤ 1.1"},
	{"open_single_p50_ms", "open loop, off, p50 ms", ""},
	{"open_single_p99_ms", "open loop, off, p99 ms", ""},
	{"open_group_p50_ms", "open loop, on, p50 ms", ""},
	{"open_group_p99_ms", "open loop, on, p99 ms", ""},
	{"open_p50_ratio", "  p50, on ÷ off", ""},
	{"open_p99_ratio", "  p99, on ÷ off", "≤ 1"},
	{"single_api_us", "CPU of a payment, off, API µs", ""},
	{"single_postgres_us", "CPU of a payment, off, Postgres µs", ""},
	{"group_api_us", "CPU of a payment, on, API µs", ""},
	{"group_postgres_us", "CPU of a payment, on, Postgres µs", ""},
	{"generator_us", "CPU of a payment, on, load generator µs", ""},
	{"cpu_ratio", "  API + Postgres, off ÷ on", "≥ 3"},
	{"replay_per_s", "replays, closed loop, on, requests/s", ""},
	{"replay_ratio", "  replays ÷ first requests", "≥ 2"},
	{"replay_p99_ms", "replays, open loop, on, p99 ms", ""},
	{"replay_p99_ratio", "  replays ÷ first requests", "≤ 1"},
	{"new_claim_p50_ms", "claim of new payments, closed loop, on, p50 at most ms", ""},
	{"new_claim_p99_ms", "  p99 at most ms", "≤ 1"},
	{"claim_p99_ms", "claim of replays, open loop, p99 at most ms", "≤ 1"},
	{"claim_within_1ms", "  share within 1 ms", "≥ 0.99"},
	{"flood_alone_p99_ms", "a tenant alone at 50/s, p99 ms", ""},
	{"flood_p99_ms", "  while another one floods, p99 ms", ""},
	{"flood_p99_ratio", "  flooded ÷ alone", "< 5"},
	{"flood_per_s", "  what the other one gets done, payments/s", ""},
	{"hot_per_s", "hot account, on, payments/s", ""},
	{"hot_ratio", "  hot ÷ uniform", "≥ 0.7"},
	{"stored_per_s", "with keys stored, on, payments/s", ""},
	{"stored_none_per_s", "  with none, by turns", ""},
	{"stored_ratio", "  stored ÷ none", "≥ 0.9"},
	{"stored_claim_p50_ms", "  claim, p50 at most ms", ""},
	{"stored_claim_p99_ms", "  claim, p99 at most ms", "≤ 1"},
	{"stored_none_claim_p50_ms", "  claim with none, p50 at most ms", ""},
	{"stored_none_claim_p99_ms", "  claim with none, p99 at most ms", "≤ 1"},
	{"stored_payments_per_s", "with keys and payments stored, on, payments/s", ""},
	{"stored_payments_none_per_s", "  with none, by turns", ""},
	{"stored_payments_ratio", "  stored ÷ none", ""},
	{"stored_payments_claim_p50_ms", "  claim, p50 at most ms", ""},
	{"stored_payments_claim_p99_ms", "  claim, p99 at most ms", "≤ 1"},
	{"rss_mib", "peak memory of the API, on, MiB", "≤ 150"},
	{"single_wal_bytes_per_payment", "log of a payment, off, bytes", ""},
	{"wal_bytes_per_payment", "log of a payment, on, bytes", ""},
	{"statements_per_batch", "statements of a batch, BEGIN and COMMIT included", "constant"},
}

// always are the members of the JSON that are there, as null, if they were not measured.
var always = []string{
	"ratio", "group_per_s", "single_per_s", "p50_ratio_1conn", "open_p99_ratio", "cpu_ratio", "replay_ratio", "replay_p99_ratio",
	"claim_p99_ms", "new_claim_p99_ms", "stored_claim_p99_ms", "flood_p99_ratio", "hot_ratio", "stored_ratio", "rss_mib", "wal_bytes_per_payment", "statements_per_batch",
}

// progress is where it is said what goes on, and since when.
type progress struct {
	out   io.Writer
	begun time.Time
}

func (p progress) say(format string, args ...any) {
	fmt.Fprintf(p.out, "%4.0fs  %s\n", time.Since(p.begun).Seconds(), fmt.Sprintf(format, args...))
}

// report prints the table and, as the last line, the JSON.
func (b *bench) report(machine string) {
	load := loadAverage()
	fmt.Fprintf(b.out, "\n%s, after: %s\n", machine, load)
	fmt.Fprintf(b.out, "%d connections, %d accounts, BATCH_MAX=1 with DATABASE_POOL=%d, %d rounds of %d s", b.connections, b.accounts, b.pool, b.rounds, b.seconds)
	for _, more := range []struct {
		there bool
		text  string
	}{
		{!b.smoke, fmt.Sprintf("open loop %.0f/s", b.rate)}, {b.duplicates > 0, fmt.Sprintf("duplicates %g", b.duplicates)},
		{b.hot, "all to one account"}, {len(b.api) > 0, strings.Join(b.api, " ")},
	} {
		if more.there {
			fmt.Fprint(b.out, ", "+more.text)
		}
	}
	fmt.Fprint(b.out, "\n\n")
	b.figures.show(b.out, table)
	fmt.Fprintf(b.out, "\n%s\n", b.figures.json(always, map[string]any{"rounds": b.rounds, "pool": b.pool, "rate": math.Round(b.rate), "load_average": load}))
}

// show prints those rows that were measured.
func (f figures) show(out io.Writer, table []row) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "figure\tmedian\trange\tmust be")
	for _, row := range table {
		if values := slices.DeleteFunc(slices.Clone(f[row.name]), math.IsNaN); len(values) > 0 {
			fmt.Fprintf(w, "%s\t%s\t%s – %s\t%s\n", row.what, short(f.median(row.name)), short(slices.Min(values)), short(slices.Max(values)), row.bar)
		}
	}
	w.Flush()
}

// short has three digits, and all that stand before the point.
func short(v float64) string {
	digits := 0
	if v != 0 && !math.IsInf(v, 0) {
		digits = max(0, 2-int(math.Floor(math.Log10(math.Abs(v)))))
	}
	return strconv.FormatFloat(v, 'f', min(digits, 6), 64)
}

// json has the medians, and always those members. What is not a number is null.
func (f figures) json(always []string, more map[string]any) []byte {
	all := maps.Clone(more)
	for _, name := range append(slices.Collect(maps.Keys(f)), always...) {
		all[name] = nil
		if v := f.median(name); !math.IsNaN(v) && !math.IsInf(v, 0) {
			all[name] = json.Number(short(v))
		}
	}
	line, _ := json.Marshal(all) // numbers, strings and nulls: cannot fail
	return line
}
