package top

import (
	"encoding/json"
	"math"
	"strconv"
	"time"
)

// Figure is a number, or NaN where it is not known. JSON shows that as null.
type Figure float64

// Known reports whether there is a number.
func (f Figure) Known() bool { return !math.IsNaN(float64(f)) }

// MarshalJSON implements json.Marshaler.
func (f Figure) MarshalJSON() ([]byte, error) {
	if !f.Known() || math.IsInf(float64(f), 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(f))
}

// UnmarshalJSON implements json.Unmarshaler.
func (f *Figure) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*f = Figure(math.NaN())
		return nil
	}
	n, err := strconv.ParseFloat(string(b), 64)
	*f = Figure(n)
	return err
}

// Figures are all that one screen shows.
type Figures struct {
	At        time.Time  `json:"at"`
	Instances []Instance `json:"instances"`

	API      APIFigures      `json:"api"`
	Outbox   OutboxFigures   `json:"outbox"`
	Relay    RelayFigures    `json:"relay"`
	Consumer ConsumerFigures `json:"consumer"`
	Worker   WorkerFigures   `json:"worker"`

	Wrong []Wrong `json:"wrong"`
}

// Instance is how an instance of a program is.
type Instance struct {
	Program string `json:"program"`
	Address string `json:"address"`
	Problem string `json:"problem,omitempty"` // why it cannot be reached; empty: it answers
	Leads   bool   `json:"leads"`             // of relays
	Uptime  Figure `json:"uptime_seconds"`
}

// Latency is a median and the time within which 99 of 100 were done.
type Latency struct {
	P50 Figure `json:"p50_seconds"`
	P99 Figure `json:"p99_seconds"`
}

// APIFigures are sums over its instances.
type APIFigures struct {
	Requests Figure            `json:"requests_per_second"` // all that were answered
	Failed   Figure            `json:"failed_per_second"`   // with 5xx
	Latency  Latency           `json:"latency"`
	Outcomes map[string]Figure `json:"outcomes_per_second"` // of those with a key
	New      Figure            `json:"new_since_start"`     // executed since the instances started

	Batches   Figure  `json:"batches_per_second"`
	BatchSize Figure  `json:"batch_requests"` // mean
	Commit    Latency `json:"commit"`
	Claim     Latency `json:"claim"`
	Queue     Figure  `json:"queue_requests"` // of the longest
}

// OutboxFigures are what the relays measure in the database.
type OutboxFigures struct {
	Waiting     Figure `json:"waiting_events"`
	Oldest      Figure `json:"oldest_seconds"`
	Cursor      string `json:"cursor"`
	Writer      Figure `json:"oldest_writer_seconds"`
	DeadLetters Figure `json:"dead_letters"`
	Parked      Figure `json:"parked_aggregates"`
	DaysAhead   Figure `json:"partitions_days_ahead"` // of the table that has the fewest
}

// What the cursor does.
const (
	CursorAtEnd   = "at the end" // nothing waits
	CursorMoves   = "moving"
	CursorStands  = "standing still" // although events wait
	CursorUnknown = ""
)

// RelayFigures are sums over its instances, of which one leads.
type RelayFigures struct {
	Leaders     int     `json:"leaders"`
	StandBy     int     `json:"standing_by"`
	Events      Figure  `json:"events_per_second"`
	BatchSize   Figure  `json:"batch_events"` // mean
	Acknowledge Latency `json:"commit_to_acknowledge"`
	Publish     Latency `json:"publish"`
	Errors      Figure  `json:"errors_per_second"`
}

// ConsumerFigures are sums over its instances; all see the same dead letters.
type ConsumerFigures struct {
	Events      Figure  `json:"events_per_second"` // that took effect
	Duplicates  Figure  `json:"duplicates_per_second"`
	Failed      Figure  `json:"failed_per_second"`
	Latency     Latency `json:"latency"`
	Lag         Figure  `json:"lag_events"`
	DeadLetters Figure  `json:"dead_letters"`
	Parked      Figure  `json:"parked_aggregates"`
}

// WorkerFigures are sums over its instances, and what each measures in the database.
type WorkerFigures struct {
	Calls    Figure  `json:"psp_calls_per_second"`
	Latency  Latency `json:"psp_latency"`
	Breaker  string  `json:"psp_breaker"` // the worst of all: open, half-open or closed
	InFlight Figure  `json:"operations_in_flight"`

	Pending  Figure `json:"operations_pending"`
	Unknown  Figure `json:"operations_unknown"`
	Operator Figure `json:"operations_operator"`
	Oldest   Figure `json:"oldest_operation_seconds"`

	Expired     Figure `json:"expired_per_second"`
	Overdue     Figure `json:"oldest_overdue_seconds"`
	Webhooks    Figure `json:"webhooks_per_second"`
	WebhooksDue Figure `json:"oldest_webhook_due_seconds"`
	Disabled    Figure `json:"disabled_endpoints"`
}
