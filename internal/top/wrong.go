package top

import (
	"fmt"
)

// Wrong is a symptom of docs/operating.md that shows now.
type Wrong struct {
	Text string `json:"text"`
	Read string `json:"read"` // the heading of docs/operating.md that tells what to do
}

// The headings of docs/operating.md.
const (
	readSymptoms  = "Symptoms"
	readGone      = "A program is gone"
	readFail      = "Requests fail"
	readBooks     = "Books out of balance"
	readStuck     = "Events do not leave"
	readTopic     = "A topic is missing or forbidden"
	readCopies    = "Copies in Kafka"
	readMore      = "More partitions"
	readLetters   = "Dead letters"
	readOpen      = "A transaction stays open"
	readSnapshot  = "An old snapshot"
	readStall     = "A stall"
	readHolds     = "Holds are not released"
	readPSP       = "Operations at the PSP"
	readSequence  = "Numbers that do not follow"
	readRetention = "How long the inbox remembers"
)

// The thresholds are those of the symptoms' table, without its patience: a screen shows what is now.
const (
	Late       = 60.0  // seconds that events, holds, webhooks and writers may be late
	LatePSP    = 300.0 // seconds that a charge or refund may be
	oldView    = 300.0 // seconds that a snapshot may be held
	FewDays    = 3.0   // partitions ahead
	LongQueue  = 800.0 // of the 1,000 requests that may wait for a committer
	mismatches = .01   // of the requests with a key
	inProgress = .05   // of them
	slowClaim  = .005  // seconds, p99
	slowEvents = 2.5   // seconds from transaction to acknowledgement, p99
	unknowns   = 100.0 // operations at the PSP
	fencings   = 5.0   // of relays
	settled    = 120.0 // seconds after its start by which a program has measured everything
)

// symptoms collects what is wrong.
type symptoms struct {
	found []Wrong
	watch *Watch
}

func wrong(f Figures, w *Watch) []Wrong {
	s := &symptoms{found: []Wrong{}, watch: w}
	s.programs(f)
	s.api(f.API)
	s.relay(f)
	s.inbox(Consumer)
	s.worker(f.Worker)
	s.inbox(Worker)
	return s.found
}

// when adds a symptom if it shows. Nothing that is unknown does: a comparison with NaN is false.
func (s *symptoms) when(shows bool, read, format string, args ...any) {
	if shows {
		s.found = append(s.found, Wrong{Text: fmt.Sprintf(format, args...), Read: read})
	}
}

func (s *symptoms) programs(f Figures) {
	for _, i := range f.Instances {
		s.when(i.Problem != "", readGone, "%s at %s cannot be reached: %s", i.Program, i.Address, i.Problem)
	}
}

func (s *symptoms) api(f APIFigures) {
	all := s.watch.spans(API, memory)
	s.when(f.Failed > 0, readFail, "the API answers %s with 5xx", f.Failed.Rate())
	s.when(f.Queue > LongQueue, readFail, "%s requests wait for a committer: beyond 1,000 they get 503", f.Queue.Count())

	claim := all.histogram("idempotency_claim_seconds").latency().P99
	s.when(claim > slowClaim, readFail, "claiming keys takes %s (p99)", claim.Latency())

	// A share of a few requests says little: of a minute's, it does.
	keyed := all.grown("idempotency_requests_total")
	mismatched := all.grown("idempotency_requests_total", "outcome", "mismatch")
	s.when(mismatched > mismatches*keyed, readSymptoms, "%s of the keys belong to another request", percent(mismatched, keyed))
	running := all.grown("idempotency_requests_total", "outcome", "in_progress")
	s.when(running > inProgress*keyed, readSymptoms, "%s of the requests repeat one in progress", percent(running, keyed))
}

func (s *symptoms) relay(f Figures) {
	o, all := f.Outbox, s.watch.spans(Relay, memory)
	s.late(Relay, "outbox_oldest_unsent_seconds", Late, readStuck, "an event has waited in the outbox for %s")
	s.when(all.highest("relay_stalled") == 1, readStuck, "events wait, and the cursor has not moved for five leases")
	s.when(len(all) > 0 && f.Relay.Leaders == 0 && o.Waiting > 0, readStuck, "no relay leads, and events wait")

	for _, topic := range all.labels("relay_topic_unavailable", "topic") {
		s.when(true, readTopic, "topic %s is missing, forbidden, or has other partitions", topic)
	}
	for _, topic := range all.labels("relay_topic_partitions_changed", "topic") {
		s.when(true, readMore, "topic %s has other partitions than its events were sent with", topic)
	}

	copies, wanted := all.lowest("relay_topic_copies"), all.highest("relay_topic_copies_wanted")
	s.when(copies < wanted, readCopies, "Kafka promises %s copies of an acknowledged event, %s are wanted",
		copies.Count(), wanted.Count())

	s.when(o.DeadLetters > 0, readLetters, "Kafka rejected %s: relay dead-letters list", events(o.DeadLetters))
	s.when(o.Writer > Late, readOpen, "a transaction that has written has been open for %s", o.Writer.Age())

	view := all.highest("oldest_snapshot_seconds")
	s.when(view > oldView, readSnapshot, "a snapshot has been held for %s: hot accounts become slow", view.Age())

	slow := all.histogram("relay_commit_to_acknowledge_seconds").latency().P99
	s.when(slow > slowEvents, readSymptoms, "events reach Kafka %s after their payment (p99)", slow.Latency())
	fenced := all.grown("relay_errors_total", "kind", "fenced")
	s.when(fenced >= fencings, readSymptoms, "relays were fenced off %s times: a leader pauses for longer than its lease",
		fenced.Count())

	s.when(o.DaysAhead < FewDays, readSymptoms, "a table has partitions for only %s days ahead", o.DaysAhead.Count())
	s.silent(Relay, "partitions_days_ahead")
}

// inbox is about the consumer, and about the worker: its webhooks come through an inbox, too.
func (s *symptoms) inbox(program string) {
	now, all := s.watch.spans(program, window), s.watch.spans(program, memory)
	s.when(now.highest("consumer_stalled") == 1, readStall, "events wait, and the %s processes none", program)

	letters := now.highest("inbox_dead_letters")
	s.when(letters > 0, readLetters, "%s cannot be processed: %s dead-letters list", events(letters), program)
	failed := now.rate("inbox_events_total", "outcome", "failed")
	s.when(failed > 0, readSymptoms, "%s events fail at the %s: its log has the cause", failed.Rate(), program)

	for _, kind := range []string{"missing", "repeated"} {
		gaps := all.grown("inbox_sequence_gaps_total", "kind", kind)
		s.when(gaps > 0, readSequence, "event numbers that are %s at the %s: %s", kind, program, gaps.Count())
	}
	s.when(now.highest("inbox_retention_short") == 1, readRetention, "a topic may deliver what the inbox would have forgotten")
}

func (s *symptoms) worker(f WorkerFigures) {
	all := s.watch.spans(Worker, memory)
	for _, check := range all.labels("books_wrong", "check") {
		s.when(true, readBooks, "the books are out of balance: %s", check)
	}
	s.silent(Worker, "books_wrong")

	for _, part := range all.labels("worker_stalled", "part") {
		s.when(true, readStall, "work of the worker's part %s waits, and none of it ends", part)
	}
	s.late(Worker, "expiry_oldest_overdue_seconds", Late, readHolds, "an authorization has been over for %s and keeps its hold")
	s.late(Worker, "psp_oldest_operation_seconds", LatePSP, readPSP, "an operation at the PSP has waited for %s")
	s.late(Worker, "webhooks_oldest_due_seconds", Late, readSymptoms, "a webhook has been due for %s")

	s.when(f.Breaker == "open", readPSP, "the breaker is open: ten calls of the PSP in a row have failed")
	s.when(f.Operator > 0, readPSP, "operations that wait for an operator: %s, see oncepay psp list", f.Operator.Count())
	s.when(f.Unknown > unknowns, readPSP, "operations of which the PSP's reply was lost: %s", f.Unknown.Count())

	conflicts := all.grown("psp_conflicts_total")
	for _, outcome := range []string{"conflict", "unbookable"} {
		conflicts = plus(conflicts, float64(s.watch.spans(API, memory).grown("psp_webhooks_total", "outcome", outcome)))
	}
	s.when(conflicts > 0, readPSP, "results of the PSP that contradict our books: %s", conflicts.Count())
}

// late adds a symptom if what a program measures is above a limit, or is not measured.
func (s *symptoms) late(program, name string, limit Figure, read, format string) {
	measured := s.watch.spans(program, window).highest(name)
	s.when(measured > limit, read, format, measured.Age())
	s.silent(program, name)
}

// silent adds a symptom if no instance of a program measures something, although they have run for
// long enough.
func (s *symptoms) silent(program, name string) {
	all := s.watch.spans(program, window)
	silent := len(all) > 0 && !all.highest(name).Known()
	for _, one := range all {
		silent = silent && !(uptime(one.to) < settled)
	}
	s.when(silent, readGone, "no %s measures %s", program, name)
}

func percent(part, whole Figure) string { return fmt.Sprintf("%.1f %%", 100*float64(part/whole)) }

// events are one or more.
func events(n Figure) string {
	if n == 1 {
		return "one event"
	}
	return n.Count() + " events"
}
