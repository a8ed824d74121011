package top

import "math"

// Figures returns what the last look shows, with rates since earlier ones.
func (w *Watch) Figures() Figures {
	f := Figures{Instances: []Instance{}}
	for _, t := range w.targets {
		r := w.last(t)
		if r.at.After(f.At) {
			f.At = r.at
		}

		i := Instance{Program: t.Program, Address: t.Address, Uptime: uptime(r)}
		if r.err != nil {
			i.Problem = r.err.Error()
		}
		i.Leads = r.value("relay_leader") == 1
		f.Instances = append(f.Instances, i)
	}

	f.API = apiFigures(w.spans(API, window))
	f.Outbox = outboxFigures(w.spans(Relay, window))
	f.Relay = relayFigures(w.spans(Relay, window))
	f.Consumer = consumerFigures(w.spans(Consumer, window))
	f.Worker = workerFigures(w.spans(Worker, window))

	f.Wrong = wrong(f, w)
	return f
}

// uptime is by the clocks of two hosts.
func uptime(r reading) Figure {
	return Figure(float64(r.at.UnixMilli())/1000 - r.value(born))
}

// Outcomes are those of requests with a key.
var Outcomes = []string{"new", "replay", "mismatch", "in_progress", "busy", "invalid", "unreadable"}

func apiFigures(s spans) APIFigures {
	requests, batches := s.histogram("http_request_seconds"), s.histogram("commit_batch_requests")

	outcomes := map[string]Figure{}
	for _, outcome := range Outcomes {
		outcomes[outcome] = s.rate("idempotency_requests_total", "outcome", outcome)
	}

	return APIFigures{
		Requests: s.rate("http_requests_total"),
		Failed:   s.serverErrors(),
		Latency:  requests.latency(),
		Outcomes: outcomes,
		New:      s.total("idempotency_requests_total", "outcome", "new"),

		Batches:   s.rate("commit_batch_requests"),
		BatchSize: Figure(batches.mean()),
		Commit:    s.histogram("commit_seconds").latency(),
		Claim:     s.histogram("idempotency_claim_seconds").latency(),
		Queue:     s.highest("commit_queue_requests"),
	}
}

// serverErrors returns how many answers a second had a status of 500 or more.
func (s spans) serverErrors() Figure {
	failed := s.rate("http_requests_total", "status", "500") // NaN if no rate is known
	for _, status := range s.labels("http_requests_total", "status") {
		if status > "500" {
			failed += s.rate("http_requests_total", "status", status)
		}
	}
	return failed
}

func outboxFigures(s spans) OutboxFigures {
	o := OutboxFigures{
		Waiting:     s.highest("outbox_backlog_events"),
		Oldest:      s.highest("outbox_oldest_unsent_seconds"),
		Writer:      s.highest("outbox_oldest_writer_seconds"),
		DeadLetters: s.highest("outbox_dead_letters"),
		Parked:      s.highest("outbox_parked_aggregates"),
		DaysAhead:   s.lowest("partitions_days_ahead"),
	}

	switch published := s.rate("relay_events_published_total"); {
	case published > 0:
		o.Cursor = CursorMoves
	case o.Waiting == 0:
		o.Cursor = CursorAtEnd
	case o.Waiting > 0 && published.Known():
		o.Cursor = CursorStands
	}
	return o
}

func relayFigures(s spans) RelayFigures {
	f := RelayFigures{
		Events:      s.rate("relay_events_published_total"),
		BatchSize:   Figure(s.histogram("relay_batch_events").mean()),
		Acknowledge: s.histogram("relay_commit_to_acknowledge_seconds").latency(),
		Publish:     s.histogram("relay_publish_seconds").latency(),
		Errors:      s.rate("relay_errors_total") - s.rate("relay_errors_total", "kind", "partitions_busy"),
	}

	for _, one := range s {
		switch one.to.value("relay_leader") {
		case 1:
			f.Leaders++
		case 0:
			f.StandBy++
		}
	}
	return f
}

func consumerFigures(s spans) ConsumerFigures {
	return ConsumerFigures{
		Events:      s.rate("inbox_events_total", "outcome", "processed"),
		Duplicates:  s.rate("inbox_events_total", "outcome", "duplicate"),
		Failed:      s.rate("inbox_events_total", "outcome", "failed"),
		Latency:     s.histogram("inbox_event_seconds").latency(),
		Lag:         s.total("consumer_lag_events"),
		DeadLetters: s.highest("inbox_dead_letters"),
		Parked:      s.highest("inbox_parked_aggregates"),
	}
}

func workerFigures(s spans) WorkerFigures {
	f := WorkerFigures{
		Calls:    s.rate("psp_calls_total"),
		Latency:  s.histogram("psp_call_seconds").latency(),
		InFlight: s.total("psp_operations_in_flight"),

		Pending:  s.highest("psp_operations_waiting", "state", "pending"),
		Unknown:  s.highest("psp_operations_waiting", "state", "unknown"),
		Operator: s.highest("psp_operations_waiting", "state", "operator"),
		Oldest:   s.highest("psp_oldest_operation_seconds"),

		Expired:     s.rate("expiry_payments_total"),
		Overdue:     s.highest("expiry_oldest_overdue_seconds"),
		Webhooks:    s.rate("webhooks_calls_total", "outcome", "delivered"),
		WebhooksDue: s.highest("webhooks_oldest_due_seconds"),
		Disabled:    s.highest("webhooks_disabled_endpoints"),
	}

	for _, state := range []string{"closed", "half-open", "open"} {
		if s.highest("psp_breaker", "state", state) == 1 {
			f.Breaker = state
		}
	}
	return f
}

func (h histogram) latency() Latency {
	return Latency{P50: Figure(h.quantile(.5)), P99: Figure(h.quantile(.99))}
}

// Unknown is the figure of what is not known.
var Unknown = Figure(math.NaN())
