package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// measured is what one measurement showed, by names like per_s and p99_ms.
type measured map[string]float64

// figures are the values of all rounds, by names like group_per_s.
type figures map[string][]float64

// add takes what was measured once more under that name.
func (f figures) add(name string, m measured, suffix string) {
	for what, value := range m {
		f[name+"_"+what+suffix] = append(f[name+"_"+what+suffix], value)
	}
}

// row is a line of a table and a member of the JSON.
type row struct {
	name, what, bar string
	of              string // figure, or "figure / figure" of the same round; empty: the name
}

// values are those of each round that are a number.
func (f figures) values(r row, suffix string) []float64 {
	of, by, ratio := strings.Cut(r.of, " / ")
	if of == "" {
		of = r.name
	}

	// What is compared was measured in the same round, so a ratio is of one round too.
	values := slices.Clone(f[of+suffix])
	if ratio {
		under := f[by+suffix]
		values = values[:min(len(values), len(under))]
		for i := range values {
			values[i] /= under[i]
		}
	}

	return slices.DeleteFunc(values, math.IsNaN)
}

// median is NaN when there are no values.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}

	values = slices.Sorted(slices.Values(values))
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// show prints those rows that were measured, and adds the median of each to an object; null is what
// was not measured.
func (f figures) show(out io.Writer, table []row, suffix string, object map[string]any) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer w.Flush()

	fmt.Fprintln(w, "\nfigure\tmedian\trange\tmust be")
	for _, r := range table {
		object[r.name+suffix] = nil
		values := f.values(r, suffix)
		if len(values) == 0 {
			continue
		}

		middle := median(values)
		fmt.Fprintf(w, "%s\t%s\t%s – %s\t%s\n", r.what, short(middle),
			short(slices.Min(values)), short(slices.Max(values)), r.bar)
		if !math.IsInf(middle, 0) {
			object[r.name+suffix] = json.Number(short(middle))
		}
	}
}

// short has three digits, and all before the point.
func short(v float64) string {
	digits := 0
	if v != 0 && !math.IsInf(v, 0) {
		digits = max(0, 2-int(math.Floor(math.Log10(math.Abs(v)))))
	}
	return strconv.FormatFloat(v, 'f', min(digits, 6), 64)
}

// writeJSON prints an object on one line.
func writeJSON(out io.Writer, object map[string]any) {
	line, _ := json.Marshal(object) // numbers, strings and nulls: cannot fail
	fmt.Fprintf(out, "\n%s\n", line)
}

// intakeTable is what intake shows, in this order.
var intakeTable = []row{
	{"single_per_s", "closed loop, BATCH_MAX=1, payments/s", "", ""},
	{"group_per_s", "closed loop, group commit, payments/s", "", ""},
	{"ratio", "  on ÷ off", "≥ 4", "group_per_s / single_per_s"},
	{"batch", "  payments in a batch", "", "group_batch"},
	{"single_pairs_per_s", "authorize and capture, off, pairs/s", "", ""},
	{"group_pairs_per_s", "authorize and capture, on, pairs/s", "", ""},
	{"pairs_ratio", "  on ÷ off", "≥ 4", "group_pairs_per_s / single_pairs_per_s"},
	{"single_refunds_per_s", "refunds, off, refunds/s", "", ""},
	{"group_refunds_per_s", "refunds, on, refunds/s", "", ""},
	{"refunds_ratio", "  on ÷ off", "≥ 4", "group_refunds_per_s / single_refunds_per_s"},
	{"single_1conn_p50_ms", "one connection, off, p50 ms", "", ""},
	{"group_1conn_p50_ms", "one connection, on, p50 ms", "", ""},
	{"p50_ratio_1conn", "  on ÷ off", "≤ 1.1", "group_1conn_p50_ms / single_1conn_p50_ms"},
	{"open_single_p50_ms", "open loop, off, p50 ms", "", ""},
	{"open_single_p99_ms", "open loop, off, p99 ms", "", ""},
	{"open_group_p50_ms", "open loop, on, p50 ms", "", ""},
	{"open_group_p99_ms", "open loop, on, p99 ms", "", ""},
	{"open_p50_ratio", "  p50, on ÷ off", "", "open_group_p50_ms / open_single_p50_ms"},
	{"open_p99_ratio", "  p99, on ÷ off", "≤ 1", "open_group_p99_ms / open_single_p99_ms"},
	{"single_api_us", "CPU of a payment, off, API µs", "", ""},
	{"single_postgres_us", "CPU of a payment, off, Postgres µs", "", ""},
	{"group_api_us", "CPU of a payment, on, API µs", "", ""},
	{"group_postgres_us", "CPU of a payment, on, Postgres µs", "", ""},
	{"generator_us", "CPU of a payment, on, load generator µs", "", "group_generator_us"},
	{"cpu_ratio", "  API + Postgres, off ÷ on", "≥ 3", "single_cpu_us / group_cpu_us"},
	{"replay_per_s", "replays, closed loop, on, requests/s", "", ""},
	{"replay_ratio", "  replays ÷ first requests", "≥ 2", "replay_per_s / group_per_s"},
	{"replay_p99_ms", "replays, open loop, on, p99 ms", "", "open_replay_p99_ms"},
	{"replay_p99_ratio", "  replays ÷ first requests", "≤ 1", "open_replay_p99_ms / open_group_p99_ms"},
	{"new_claim_p50_ms", "claim of new payments, closed loop, on, p50 at most ms", "", "group_claim_p50_ms"},
	{"new_claim_p99_ms", "  p99 at most ms", "≤ 1", "group_claim_p99_ms"},
	{"claim_p99_ms", "claim of replays, open loop, p99 at most ms", "≤ 1", "open_replay_claim_p99_ms"},
	{"flood_alone_p99_ms", "a tenant alone at 50/s, p99 ms", "", ""},
	{"flood_p99_ms", "  while another one floods, p99 ms", "", ""},
	{"flood_p99_ratio", "  flooded ÷ alone", "< 5", "flood_p99_ms / flood_alone_p99_ms"},
	{"hot_per_s", "hot account, on, payments/s", "", ""},
	{"hot_ratio", "  hot ÷ uniform", "≥ 0.7", "hot_per_s / group_per_s"},
	{"stored_per_s", "with keys stored, on, payments/s", "", ""},
	{"stored_none_per_s", "  with none, by turns", "", ""},
	{"stored_ratio", "  stored ÷ none", "≥ 0.9", "stored_per_s / stored_none_per_s"},
	{"stored_claim_p50_ms", "  claim, p50 at most ms", "", ""},
	{"stored_claim_p99_ms", "  claim, p99 at most ms", "≤ 1", ""},
	{"stored_none_claim_p50_ms", "  claim with none, p50 at most ms", "", ""},
	{"stored_none_claim_p99_ms", "  claim with none, p99 at most ms", "≤ 1", ""},
	{"stored_payments_per_s", "with keys and payments stored, on, payments/s", "", ""},
	{"stored_payments_none_per_s", "  with none, by turns", "", ""},
	{"stored_payments_ratio", "  stored ÷ none", "", "stored_payments_per_s / stored_payments_none_per_s"},
	{"stored_payments_claim_p50_ms", "  claim, p50 at most ms", "", ""},
	{"stored_payments_claim_p99_ms", "  claim, p99 at most ms", "≤ 1", ""},
	{"rss_mib", "peak memory of the API, on, MiB", "≤ 150", "peak_rss_mib"},
	{"single_wal_bytes_per_payment", "log of a payment, off, bytes", "", "single_wal_bytes"},
	{"wal_bytes_per_payment", "log of a payment, on, bytes", "", "group_wal_bytes"},
}

// contendedTable is what intake -contended shows.
var contendedTable = []row{
	{"ended_per_s", "captures and cancels that won, a second", "", "contended_ended_per_s"},
	{"refused_per_s", "  that came too late, a second", "", "contended_refused_per_s"},
	{"deadlocks", "deadlocks", "0", "contended_deadlocks"},
}

// expiryTable is what expiry shows.
var expiryTable = []row{
	{"released_s", "the last hold is released after its time, s", "≤ 30", "expiry_released_s"},
	{"expired_per_s", "  holds released a second", "", "expiry_per_s"},
	{"alone_p99_ms", "payments without, open loop, p99 ms", "", ""},
	{"beside_p99_ms", "  beside the release, p99 ms", "", ""},
	{"p99_ratio", "  beside ÷ without", "≤ 2", "beside_p99_ms / alone_p99_ms"},
}

// pspTable is what psp shows.
var pspTable = []row{
	{"charges_per_s", "card payments until all have ended, charges/s", "≥ 500", ""},
	{"charges_claim", "  charges claimed together", "", ""},
	{"charges_batch", "  results recorded together", "", ""},
	{"charges_api_us", "  CPU of a charge, API µs", "", ""},
	{"charges_worker_us", "  CPU of a charge, worker µs", "", ""},
	{"charges_postgres_us", "  CPU of a charge, Postgres µs", "", ""},
	{"charges_psp_us", "  CPU of a charge, fakepsp µs", "", ""},
	{"charges_generator_us", "  CPU of a charge, load generator µs", "", ""},
	{"charges_wal_bytes", "  log of a charge, bytes", "", ""},
	{"steady_wait_p50_ms", "200/s, from the intake to the call of the PSP, p50 at most ms", "≤ 30", ""},
	{"steady_wait_p99_ms", "  p99 at most ms", "", ""},
	{"steady_claim_wait_p50_ms", "  to the claim before the call, p50 ms", "", ""},
	{"steady_claim_wait_p99_ms", "  to the claim before the call, p99 ms", "", ""},
	{"up_p50_ms", "payments beside 50/s by card, the PSP up, p50 ms", "", ""},
	{"up_p99_ms", "  p99 ms", "", ""},
	{"down_p50_ms", "payments beside 50/s by card, the PSP down, p50 ms", "", ""},
	{"down_p99_ms", "  p99 ms", "", ""},
	{"down_p99_ratio", "  p99, down ÷ up", "≤ 1.2", "down_p99_ms / up_p99_ms"},
	{"down_waiting", "  card payments that wait at its end", "", ""},
}

// drainTable is what relay shows of a drain.
var drainTable = []row{
	{"tutorial_drain_per_s", "tutorial, events/s", "", "tutorial_per_s"},
	{"drain_per_s", "ours, events/s", "≥ 150,000", "ours_per_s"},
	{"drain_ratio", "  ours ÷ tutorial", "≥ 6", "ours_per_s / tutorial_per_s"},
	{"exactly_once_per_s", "ours exactly once, events/s", "", ""},
	{"exactly_once_ratio", "  exactly once ÷ at least once", "≥ 0.8", "exactly_once_per_s / ours_per_s"},
	{"tutorial_relay_cpu_ms", "CPU of 1,000 events, tutorial, relay ms", "", ""},
	{"tutorial_postgres_cpu_ms", "CPU of 1,000 events, tutorial, Postgres ms", "", ""},
	{"relay_cpu_ms", "CPU of 1,000 events, ours, relay ms", "", "ours_relay_cpu_ms"},
	{"postgres_cpu_ms", "CPU of 1,000 events, ours, Postgres ms", "", "ours_postgres_cpu_ms"},
	{"cpu_ratio", "  relay + Postgres, tutorial ÷ ours", "≥ 2", "tutorial_cpu_ms / ours_cpu_ms"},
	{"tutorial_wal_bytes_per_event", "log of an event, tutorial, bytes", "", "tutorial_wal_bytes"},
	{"wal_bytes_per_event", "log of an event, ours, bytes", "≤ 10", "ours_wal_bytes"},
	{"tutorial_dead_rows", "dead rows in the outbox, tutorial", "", ""},
	{"dead_rows", "dead rows in the outbox, ours", "0", "ours_dead_rows"},
}

// relayTable is what relay shows besides.
var relayTable = []row{
	{"p50_ms_500", "500/s, ours, p50 ms", "", "ours_500_p50_ms"},
	{"p99_ms_500", "500/s, ours, p99 ms", "≤ 12", "ours_500_p99_ms"},
	{"p50_ms_500_hold", "500/s, ours, a transaction open, p50 ms", "", "hold_500_p50_ms"},
	{"p99_ms_500_hold", "500/s, ours, a transaction open, p99 ms", "", "hold_500_p99_ms"},
	{"hold_ratio", "  p99, open ÷ none", "≤ 1.3", "hold_500_p99_ms / ours_500_p99_ms"},
	{"tutorial_p50_ms_500", "500/s, tutorial, p50 ms", "", "tutorial_500_p50_ms"},
	{"tutorial_p99_ms_500", "500/s, tutorial, p99 ms", "", "tutorial_500_p99_ms"},
	{"p99_ratio_500", "  p99, tutorial ÷ ours", "≥ 30", "tutorial_500_p99_ms / ours_500_p99_ms"},
	{"p50_ms_5000", "5,000/s, ours, p50 ms", "", "ours_5000_p50_ms"},
	{"p99_ms_5000", "5,000/s, ours, p99 ms", "≤ 25", "ours_5000_p99_ms"},
	{"p50_ms_5000_hold", "5,000/s, ours, a transaction open, p50 ms", "", "hold_5000_p50_ms"},
	{"p99_ms_5000_hold", "5,000/s, ours, a transaction open, p99 ms", "", "hold_5000_p99_ms"},
	{"hold_ratio_5000", "  p99, open ÷ none", "≤ 1.3", "hold_5000_p99_ms / ours_5000_p99_ms"},
	{"written_per_s_5000", "  events/s that were written", "", "ours_5000_written_per_s"},
	{"rss_mib", "peak memory of the relay with the backlog, MiB", "≤ 64", "ours_rss_mib_backlog"},
	{"drain_per_s_backlog", "  drain of the backlog, events/s", "", "ours_per_s_backlog"},
	{"idle_cpu", "idle relay, share of a core", "< 0.01", ""},
	{"idle_postgres_cpu", "  Postgres' share of a core", "", ""},
	{"idle_wal_bytes", "  log of some seconds, bytes", "≤ 2,000", ""},
	{"tutorial_duplicates", "tutorial, duplicates of a topic", "", ""},
	{"tutorial_out_of_order", "tutorial, out of order in a topic", "", ""},
}
