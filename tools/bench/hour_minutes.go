package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

// minute is what one minute showed. Sizes are of a payment.
type minute struct {
	PerS         float64  `json:"per_s"`
	P50          float64  `json:"p50_ms"`
	P99          float64  `json:"p99_ms"`
	Max          float64  `json:"max_ms"`
	WAL          float64  `json:"wal_bytes"`
	Images       float64  `json:"full_pages"`
	API          float64  `json:"api_us"`
	Relay        float64  `json:"relay_us"`
	Postgres     float64  `json:"postgres_us"`
	Checkpoints  float64  `json:"checkpoints"`
	Vacuums      float64  `json:"vacuums"`
	Transactions float64  `json:"transactions_per_s"`
	Frozen       []string `json:"frozen,omitempty"`
}

// minutesOf returns what lies between the looks.
func minutesOf(looks []look) (all []minute) {
	for i, from := range looks[:len(looks)-1] {
		to := looks[i+1]
		seconds := to.at.Sub(from.at).Seconds()
		answered := float64(from.latencies.TotalCount())
		payments := math.Max(1, answered) // a minute in which nothing was answered has figures, too
		all = append(all, minute{
			PerS: answered / seconds,
			P50:  from.latencies.Millis(50), P99: from.latencies.Millis(99), Max: from.latencies.Millis(100),
			WAL: (to.wal - from.wal) / payments, Images: (to.images - from.images) / payments,
			API: 1e6 * (to.api - from.api) / payments, Relay: 1e6 * (to.relay - from.relay) / payments,
			Postgres:     1e6 * (to.postgres - from.postgres) / payments,
			Checkpoints:  float64(to.checkpoints - from.checkpoints),
			Vacuums:      float64(vacuums(to) - vacuums(from)),
			Transactions: (to.transactions - from.transactions) / seconds,
			Frozen:       from.frozen,
		})
	}
	return all
}

func vacuums(l look) (n int64) {
	for _, t := range l.tables {
		n += t.Vacuums
	}
	return n
}

// showMinutes prints a row for each sixth of the run, and one for all of it.
func showMinutes(out io.Writer, all []minute) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer w.Flush()

	fmt.Fprintln(w, "\nminutes\tpayments/s\tp50 ms\tp99 ms, median\tp99 ms, worst\tlog B\tfull pages\t"+
		"CPU api µs\trelay\tPostgres\tcheckpoints\tvacuums\tfrozen\t")
	part := max(1, (len(all)+5)/6)
	for from := 0; from < len(all); from += part {
		until := min(from+part, len(all))
		showPart(w, fmt.Sprintf("%d–%d", from+1, until), all[from:until])
	}
	showPart(w, "all", all)
}

func showPart(w io.Writer, name string, all []minute) {
	values := func(of func(minute) float64) (list []float64) {
		for _, m := range all {
			list = append(list, of(m))
		}
		return list
	}
	mean := func(of func(minute) float64) float64 { return sum(values(of)) / float64(len(all)) }
	worst := 0.0
	var frozen []string
	for _, m := range all {
		worst = math.Max(worst, m.P99)
		frozen = append(frozen, m.Frozen...)
	}

	fmt.Fprintf(w, "%s\t%.0f\t%.1f\t%.1f\t%.1f\t%.0f\t%.2f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%s\t\n", name,
		mean(func(m minute) float64 { return m.PerS }),
		median(values(func(m minute) float64 { return m.P50 })),
		median(values(func(m minute) float64 { return m.P99 })), worst,
		mean(func(m minute) float64 { return m.WAL }), mean(func(m minute) float64 { return m.Images }),
		mean(func(m minute) float64 { return m.API }), mean(func(m minute) float64 { return m.Relay }),
		mean(func(m minute) float64 { return m.Postgres }),
		sum(values(func(m minute) float64 { return m.Checkpoints })),
		sum(values(func(m minute) float64 { return m.Vacuums })), strings.Join(slices.Compact(slices.Sorted(slices.Values(frozen))), " "))
}

func sum(values []float64) (total float64) {
	for _, v := range values {
		total += v
	}
	return total
}

// showTables prints how each table grew, and what its updates left behind.
func showTables(out io.Writer, from, to look) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer w.Flush()

	before := map[string]tableLook{}
	for _, t := range from.tables {
		before[t.Name] = t
	}
	fmt.Fprintln(w, "\ntable\tMB before\tMB after\tof these indexes\trows\tdead rows\tupdated\tHOT %\tvacuums\tage\t")
	for _, t := range to.tables {
		b := before[t.Name]
		if t.Heap+t.Indexes < 1e6 && t.Updated == b.Updated {
			continue // of no interest
		}

		hot := math.NaN()
		if t.Updated > b.Updated {
			hot = 100 * (t.Hot - b.Hot) / (t.Updated - b.Updated)
		}

		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.1f\t%d\t%d\t\n", t.Name,
			(b.Heap+b.Indexes)/1e6, (t.Heap+t.Indexes)/1e6, t.Indexes/1e6, t.Live, t.Dead,
			t.Updated-b.Updated, hot, t.Vacuums-b.Vacuums, t.Age)
	}
}
