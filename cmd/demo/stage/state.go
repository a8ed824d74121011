package stage

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/oncepay/oncepay/cmd/demo/local"
	"github.com/oncepay/oncepay/cmd/demo/page"
)

// stateMax bounds what is read for a state: the page must not wait for what is frozen.
const stateMax = 2 * time.Second

// State reads what the page shows. It is called by one goroutine.
func (s *Stage) State(ctx context.Context) page.State {
	ctx, cancel := context.WithTimeout(ctx, stateMax)
	defer cancel()

	state := page.Blank(s.elapsed())
	s.topic.follow(s.living, s.Service.Brokers())
	s.checks.keepUp(s)

	var all sync.WaitGroup
	all.Go(func() { s.metrics.read(ctx, s.Service.All()) })
	all.Go(func() { state.Outbox, state.Lease = s.outbox.read(ctx, s) })
	all.Go(func() { state.Payment = s.shown.read(ctx, s) })
	all.Wait()

	state.Invariants, state.CheckedElapsed = s.checks.result()
	state.Faults = s.faults()
	s.fillBoxes(&state)
	s.fillFlows(&state)
	return state
}

// faults are those that the visitor has to end.
func (s *Stage) faults() page.Faults {
	f := page.Faults{OpenTransaction: s.held.open(), Frozen: []string{}}
	_, f.LoseCommitReply = s.Service.CommitReplies()
	for _, p := range s.Service.All() {
		if p.State() == local.Frozen {
			f.Frozen = append(f.Frozen, nameOf(p))
		}
	}
	if s.Service.Kafka().State() == local.Frozen {
		f.Frozen = append(f.Frozen, "kafka")
	}
	return f
}

// nameOf calls fakepsp what it plays.
func nameOf(p *local.Program) string {
	if p.Kind == "fakepsp" {
		return "psp"
	}
	return p.Name
}

func (s *Stage) fillBoxes(state *page.State) {
	m := &s.metrics
	box := func(id, program, unit string, rate float64, histogram string) *page.Box {
		b := state.Box(id)
		b.State, b.Unit, b.Rate = page.Running, unit, rate
		b.P50, b.P99 = m.quantiles(histogram)
		for _, p := range s.Service.All() {
			if p.Kind == program {
				b.State = string(p.State())
				b.Instances = append(b.Instances, page.Instance{Name: nameOf(p), State: b.State})
			}
		}
		return b
	}

	requests := m.rate("http_requests_total")
	box("requests", "", "requests/s", requests, "").Detail =
		fmt.Sprintf("%d in flight", s.InFlight())
	box("api", "api", "requests/s", requests, "http_request_seconds").Detail =
		fmt.Sprintf("batches of %.1f", m.mean("commit_batch_requests"))
	_, claim := m.quantiles("idempotency_claim_seconds")
	box("postgres", "", "transactions/s", m.rate("commit_seconds"), "commit_seconds").Detail =
		"claims p99 " + millis(claim)
	s.fillRelays(state, box("relay", "relay", "events/s", m.rate("relay_events_published_total"),
		"relay_commit_to_acknowledge_seconds"))
	kafka := box("kafka", "", "records/s", m.rate("relay_events_published_total"), "relay_publish_seconds")
	kafka.State, kafka.Detail = string(s.Service.Kafka().State()), "inside the demo"
	box("consumer", "consumer", "events/s", m.rate("inbox_events_total", "consumer"), "inbox_event_seconds").
		Detail = fmt.Sprintf("%.0f behind", m.gauge("consumer_lag_events", "consumer"))
	box("worker", "worker", "operations/s", m.rate("psp_results_total")+m.rate("expiry_payments_total"),
		"psp_first_call_wait_seconds").Detail = fmt.Sprintf("%.0f holds expired/s", m.rate("expiry_payments_total"))
	box("psp", "fakepsp", "calls/s", m.rate("psp_calls_total"), "psp_call_seconds").Detail =
		fmt.Sprintf("%.0f without a result", m.gauge("psp_operations_waiting", "worker"))
	box("webhooks", "", "calls/s", m.rate("webhooks_calls_total"), "webhooks_call_seconds").Detail =
		"a customer's receiver"
}

// fillRelays says who leads: who holds the lease, and is not frozen.
func (s *Stage) fillRelays(state *page.State, b *page.Box) {
	b.State, b.Detail = page.Down, fmt.Sprintf("batches of %.1f", s.metrics.mean("relay_batch_events"))
	for i := range b.Instances {
		one := &b.Instances[i]
		if one.State == page.Running {
			one.State = page.StandingBy
			if state.Lease != nil && state.Lease.Holder == one.Name {
				one.State = page.Leading
			}
		}
	}

	// The box is as well as the best of them.
	for _, best := range []string{page.Leading, page.StandingBy, page.Starting, page.Frozen} {
		for _, one := range b.Instances {
			if one.State == best {
				b.State = best
				return
			}
		}
	}
}

func millis(v *float64) string {
	if v == nil {
		return "unknown"
	}
	return fmt.Sprintf("%.1f ms", *v)
}

// fillFlows takes the rates that the boxes have.
func (s *Stage) fillFlows(state *page.State) {
	m := &s.metrics
	rates := map[[2]string]float64{
		{"requests", "api"}:    state.Box("requests").Rate,
		{"api", "postgres"}:    state.Box("postgres").Rate,
		{"postgres", "relay"}:  state.Box("relay").Rate,
		{"relay", "kafka"}:     state.Box("relay").Rate,
		{"kafka", "consumer"}:  state.Box("consumer").Rate,
		{"kafka", "worker"}:    m.rate("inbox_events_total", "worker"),
		{"worker", "psp"}:      state.Box("psp").Rate,
		{"worker", "webhooks"}: state.Box("webhooks").Rate,
	}
	for i := range state.Flows {
		f := &state.Flows[i]
		f.Rate = rates[[2]string{f.From, f.To}]
	}
}
