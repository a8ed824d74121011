package screen

import (
	"unicode/utf8"

	"github.com/oncepay/oncepay/internal/top"
)

const (
	gutter = 10 // of the sections' names
	cell   = 16 // the least width of a name and its number
	apart  = 2  // between two figures
)

// figure is a number with its name. bad ones show as such, and the list of what is wrong says why.
type figure struct {
	name, text string
	bad        bool
}

// row puts as many figures on a line as there is room for, from the most important on.
func (d *drawing) row(figures ...figure) {
	fit := d.columns()
	figures = figures[:min(fit, len(figures))]
	width := (d.Width - gutter + apart) / fit

	l := line{}
	for i, f := range figures {
		color := d.strong
		switch f.text {
		case top.Unknown.Count(), "0", "0/s", "0 s":
			color = d.label // nothing to see
		}
		if f.bad {
			color = d.bad
		}

		// The number ends where the next figure's gap begins, so that it does not jump.
		begin, room := gutter+i*width, min(width-apart, 22)
		number := cut(f.text, room)
		digits := utf8.RuneCountInString(number)
		l = l.to(begin).add(cut(f.name, room-digits-1), d.label).to(begin+room-digits).add(number, color)
	}
	d.put(l)
}

// columns is how many figures fit side by side: four at the smallest width, at most six. Wider windows
// leave more room for each as well.
func (d *drawing) columns() int {
	all := d.Width - gutter + apart
	if n := all / (cell + apart); n <= 4 {
		return max(n, 1)
	}
	return min(max(all/(cell+apart+2), 4), 6)
}

func (d *drawing) apiRows(f top.APIFigures) {
	d.row(
		figure{"requests", f.Requests.Rate(), false},
		figure{"p50", f.Latency.P50.Latency(), false},
		figure{"p99", f.Latency.P99.Latency(), false},
		figure{"5xx", f.Failed.Rate(), f.Failed > 0},
		figure{"busy", f.Outcomes["busy"].Rate(), false},
		figure{"invalid", f.Outcomes["invalid"].Rate(), false},
	)
	d.row(
		figure{"new", f.Outcomes["new"].Rate(), false},
		figure{"replay", f.Outcomes["replay"].Rate(), false},
		figure{"progress", f.Outcomes["in_progress"].Rate(), false},
		figure{"mismatch", f.Outcomes["mismatch"].Rate(), false},
		figure{"commit p99", f.Commit.P99.Latency(), false},
		figure{"commit p50", f.Commit.P50.Latency(), false},
	)
	d.row(
		figure{"batches", f.Batches.Rate(), false},
		figure{"batch size", f.BatchSize.Mean(), false},
		figure{"queue", f.Queue.Count(), f.Queue > top.LongQueue},
		figure{"claim p99", f.Claim.P99.Latency(), false},
		figure{"claim p50", f.Claim.P50.Latency(), false},
	)
}

func (d *drawing) outboxRows(o top.OutboxFigures) {
	d.row(
		figure{"waiting", o.Waiting.Count(), false},
		figure{"oldest", o.Oldest.Age(), o.Oldest > top.Late},
		figure{"writer", o.Writer.Age(), o.Writer > top.Late},
		figure{"days ahead", o.DaysAhead.Count(), o.DaysAhead < top.FewDays},
		figure{"dead letters", o.DeadLetters.Count(), o.DeadLetters > 0},
		figure{"parked", o.Parked.Count(), o.Parked > 0},
	)
}

func (d *drawing) relayRows(f top.RelayFigures) {
	d.row(
		figure{"events", f.Events.Rate(), false},
		figure{"ack p99", f.Acknowledge.P99.Latency(), false},
		figure{"send p99", f.Publish.P99.Latency(), false},
		figure{"errors", f.Errors.Rate(), f.Errors > 0},
		figure{"ack p50", f.Acknowledge.P50.Latency(), false},
		figure{"batch size", f.BatchSize.Mean(), false},
	)
}

func (d *drawing) consumerRows(f top.ConsumerFigures) {
	d.row(
		figure{"events", f.Events.Rate(), false},
		figure{"lag", f.Lag.Count(), false},
		figure{"dead letters", f.DeadLetters.Count(), f.DeadLetters > 0},
		figure{"parked", f.Parked.Count(), f.Parked > 0},
		figure{"p99", f.Latency.P99.Latency(), false},
		figure{"duplicates", f.Duplicates.Rate(), false},
	)
}

func (d *drawing) workerRows(f top.WorkerFigures) {
	breaker := f.Breaker
	if breaker == "" {
		breaker = top.Unknown.Count()
	}
	d.row(
		figure{"calls", f.Calls.Rate(), false},
		figure{"p99", f.Latency.P99.Latency(), false},
		figure{"in flight", f.InFlight.Count(), false},
		figure{"breaker", breaker, breaker == "open"},
		figure{"p50", f.Latency.P50.Latency(), false},
	)
	d.row(
		figure{"pending", f.Pending.Count(), false},
		figure{"unknown", f.Unknown.Count(), false},
		figure{"operator", f.Operator.Count(), f.Operator > 0},
		figure{"oldest", f.Oldest.Age(), f.Oldest > top.LatePSP},
		figure{"disabled", f.Disabled.Count(), false},
	)
	d.row(
		figure{"overdue", f.Overdue.Age(), f.Overdue > top.Late},
		figure{"expired", f.Expired.Rate(), false},
		figure{"webhooks", f.Webhooks.Rate(), false},
		figure{"due", f.WebhooksDue.Age(), f.WebhooksDue > top.Late},
	)
}
