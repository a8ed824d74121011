package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

func (f figures) compareDrains(suffix string, ours, tutorial drained) {
	f.add("tutorial_drain_per_s"+suffix, tutorial.perSecond)
	f.add("drain_per_s"+suffix, ours.perSecond)
	f.add("drain_ratio"+suffix, ours.perSecond/tutorial.perSecond)
	f.add("tutorial_relay_cpu_ms"+suffix, tutorial.relay)
	f.add("tutorial_postgres_cpu_ms"+suffix, tutorial.postgres)
	f.add("relay_cpu_ms"+suffix, ours.relay)
	f.add("postgres_cpu_ms"+suffix, ours.postgres)
	f.add("cpu_ratio"+suffix, tutorial.cpu()/ours.cpu())
	f.add("tutorial_wal_bytes_per_event"+suffix, tutorial.wal)
	f.add("wal_bytes_per_event"+suffix, ours.wal)
	f.add("tutorial_dead_rows"+suffix, tutorial.dead)
	f.add("dead_rows"+suffix, ours.dead)
}

// compareSteady leaves out what was not measured at the rate that its name says.
func (f figures) compareSteady(rate int, plain, held paced) {
	name := func(s string) string { return fmt.Sprintf(s, rate) }
	f.add(name("written_per_s_%d"), plain.written)
	f.add(name("written_per_s_%d_hold"), held.written)
	at := func(m paced, percent float64) float64 {
		if m.written < .9*float64(rate) {
			return math.NaN()
		}
		return m.quantile(percent)
	}
	f.add(name("p50_ms_%d"), at(plain, 50))
	f.add(name("p99_ms_%d"), at(plain, 99))
	f.add(name("p50_ms_%d_hold"), at(held, 50))
	f.add(name("p99_ms_%d_hold"), at(held, 99))
	ratio := name("hold_ratio_%d")
	if rate == paces[0].rate {
		ratio = "hold_ratio"
	}
	f.add(ratio, at(held, 99)/at(plain, 99))
}

// drainTable is what relay shows of a drain. Those of the small one end in _few.
var drainTable = []row{
	{"tutorial_drain_per_s", "tutorial, events/s", ""},
	{"drain_per_s", "ours, events/s", "≥ 150,000"},
	{"drain_ratio", "  ours ÷ tutorial", "≥ 6"},
	{"exactly_once_per_s", "ours exactly once, events/s", ""},
	{"exactly_once_ratio", "  exactly once ÷ at least once", "≥ 0.8"},
	{"tutorial_relay_cpu_ms", "CPU of 1,000 events, tutorial, relay ms", ""},
	{"tutorial_postgres_cpu_ms", "CPU of 1,000 events, tutorial, Postgres ms", ""},
	{"relay_cpu_ms", "CPU of 1,000 events, ours, relay ms", ""},
	{"postgres_cpu_ms", "CPU of 1,000 events, ours, Postgres ms", ""},
	{"cpu_ratio", "  relay + Postgres, tutorial ÷ ours", "≥ 2"},
	{"tutorial_wal_bytes_per_event", "log of an event, tutorial, bytes", ""},
	{"wal_bytes_per_event", "log of an event, ours, bytes", "≤ 10"},
	{"tutorial_dead_rows", "dead rows in the outbox, tutorial", ""},
	{"dead_rows", "dead rows in the outbox, ours", "0"},
}

// steadyTable is what relay shows besides.
var steadyTable = []row{
	{"p50_ms_500", "500/s, ours, p50 ms", ""},
	{"p99_ms_500", "500/s, ours, p99 ms", "≤ 12"},
	{"p99_ms_500_hold", "500/s, ours, a transaction open, p99 ms", ""},
	{"hold_ratio", "  open ÷ none", "≤ 1.3"},
	{"tutorial_p50_ms_500", "500/s, tutorial, p50 ms", ""},
	{"tutorial_p99_ms_500", "500/s, tutorial, p99 ms", ""},
	{"p99_ratio_500", "  p99, tutorial ÷ ours", "≥ 30"},
	{"p50_ms_5000", "5,000/s, ours, p50 ms", ""},
	{"p99_ms_5000", "5,000/s, ours, p99 ms", "≤ 25"},
	{"p99_ms_5000_hold", "5,000/s, ours, a transaction open, p99 ms", ""},
	{"hold_ratio_5000", "  open ÷ none", "≤ 1.3"},
	{"written_per_s_5000", "  events/s that were written", ""},
	{"rss_mib", "peak memory of the relay with the backlog, MiB", "≤ 64"},
	{"drain_per_s_backlog", "  drain of the backlog, events/s", ""},
	{"idle_cpu", "idle relay, share of a core", "< 0.01"},
	{"idle_postgres_cpu", "  Postgres' share of a core", ""},
	{"idle_wal_bytes", "  log of some seconds, bytes", "≤ 2,000"},
	{"tutorial_duplicates", "tutorial, duplicates of a topic", ""},
	{"tutorial_out_of_order", "tutorial, out of order in a topic", ""},
}

// relayAlways are the members of the JSON that are there, as null, if they were not measured.
var relayAlways = []string{
	"drain_ratio", "drain_per_s", "p99_ms_500", "p99_ms_500_hold", "hold_ratio", "p99_ms_5000", "p99_ratio_500", "exactly_once_ratio", "cpu_ratio",
	"wal_bytes_per_event", "dead_rows", "rss_mib", "idle_cpu", "idle_wal_bytes",
}

// report prints the tables and, as the last line, the JSON.
func (b *relayBench) report(machine string) {
	load := loadAverage()
	fmt.Fprintf(b.out, "\n%s, after: %s\n", machine, load)
	fmt.Fprintf(b.out, "events of %d bytes, %d aggregates, %d partitions, RELAY_DELIVERY=%s, %d rounds, "+
		"traffic of %d s: 500/s in transactions of one event, 5,000/s in transactions of ten\n", payloadBytes, aggregates, topicPartitions,
		b.ours().delivery, b.rounds, b.seconds)
	if len(b.variables) > 0 {
		fmt.Fprintln(b.out, strings.Join(b.variables, " "))
	}
	fmt.Fprintf(b.out, "\ntopics read from their beginning, ours: %d missing, %d out of order, %d duplicates\n",
		b.counts.missing, b.counts.outOfOrder, b.counts.duplicates)
	for _, size := range b.sizes() {
		fmt.Fprintf(b.out, "\ndrain of %d events (tutorial: %d)\n\n", size.events, min(b.tutorialEvents, size.events))
		b.figures.show(b.out, suffixed(drainTable, size.suffix))
	}
	fmt.Fprintln(b.out)
	b.figures.show(b.out, steadyTable)
	fmt.Fprintf(b.out, "\n%s\n", b.figures.json(relayAlways, map[string]any{
		"missing": b.counts.missing, "out_of_order": b.counts.outOfOrder, "duplicates": b.counts.duplicates,
		"rounds": b.rounds, "broker": b.broker.Name, "delivery": b.ours().delivery, "events": max(b.few, b.many), "load_average": load,
	}))
}

// suffixed are the same rows of other figures.
func suffixed(table []row, suffix string) []row {
	table = slices.Clone(table)
	for i := range table {
		table[i].name += suffix
	}
	return table
}
