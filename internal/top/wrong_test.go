package top_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/top"
)

// TestEachSymptomIsFound: of the demo's programs nothing is wrong but what the demo does on purpose,
// and each change shows as one symptom.
func TestEachSymptomIsFound(t *testing.T) {
	t.Parallel()
	const mismatch = `idempotency_requests_total{outcome="mismatch"}`
	for name, c := range map[string]struct {
		program string
		change  func(string) string
		text    string // "" for none
		read    string
	}{
		"nothing":               {top.API, nil, "", ""},
		"503":                   {top.API, replace(`status="409"} 17`, `status="503"} 99`), "the API answers 20/s with 5xx", "Requests fail"},
		"a full queue":          {top.API, with("commit_queue_requests", "950"), "950 requests wait for a committer", "Requests fail"},
		"mismatches":            {top.API, with(mismatch, "400"), "of the keys belong to another request", "Symptoms"},
		"old events":            {top.Relay, with("outbox_oldest_unsent_seconds", "72"), "an event has waited in the outbox for 1m 12s", "Events do not leave"},
		"events of a minute":    {top.Relay, with("outbox_oldest_unsent_seconds", "60"), "", ""},
		"age not measured":      {top.Relay, without("outbox_oldest_unsent_seconds"), "no relay measures outbox_oldest_unsent_seconds", "A program is gone"},
		"nobody leads":          {top.Relay, with("relay_leader", "0", "outbox_backlog_events", "4"), "no relay leads", "Events do not leave"},
		"a missing topic":       {top.Relay, more(`relay_topic_unavailable{topic="oncepay.payments"} 1`), "topic oncepay.payments is missing", "A topic is missing or forbidden"},
		"other partitions":      {top.Relay, more(`relay_topic_partitions_changed{topic="oncepay.payments",sent="12",now="24"} 1`), "topic oncepay.payments has other partitions", "More partitions"},
		"one copy":              {top.Relay, more("relay_topic_copies_wanted 2\n" + `relay_topic_copies{topic="a"} 2` + "\n" + `relay_topic_copies{topic="b"} 1`), "promises 1 copies of an acknowledged event, 2 are wanted", "Copies in Kafka"},
		"one that is wanted":    {top.Relay, more("relay_topic_copies_wanted 1\n" + `relay_topic_copies{topic="b"} 1`), "", ""},
		"a rejected event":      {top.Relay, with("outbox_dead_letters", "1"), "Kafka rejected one event", "Dead letters"},
		"a long transaction":    {top.Relay, with("outbox_oldest_writer_seconds", "61"), "open for 1m 1s", "A transaction stays open"},
		"fenced":                {top.Relay, with(`relay_errors_total{kind="fenced"}`, "5"), "fenced off 5 times", "Symptoms"},
		"a frozen relay":        {top.Relay, with(`relay_errors_total{kind="fenced"}`, "4"), "", ""},
		"an old snapshot":       {top.Relay, more(`oldest_snapshot_seconds{kind="session"} 301`), "a snapshot has been held for 5m 1s", "An old snapshot"},
		"few days":              {top.Relay, with(`partitions_days_ahead{table="outbox_events"}`, "2"), "only 2 days ahead", "Symptoms"},
		"days not measured":     {top.Relay, without("partitions_days_ahead"), "no relay measures partitions_days_ahead", "A program is gone"},
		"three days":            {top.Relay, with(`partitions_days_ahead{table="outbox_events"}`, "3"), "", ""},
		"a relay that stalls":   {top.Relay, more("relay_stalled 1"), "the cursor has not moved for five leases", "Events do not leave"},
		"a consumer that does":  {top.Consumer, more("consumer_stalled 1"), "events wait, and the consumer processes none", "A stall"},
		"a part that does":      {top.Worker, more(`worker_stalled{part="psp"} 1`), "the worker's part psp waits", "A stall"},
		"books":                 {top.Worker, with(`books_wrong{check="accounts"}`, "1"), "out of balance: accounts", "Books out of balance"},
		"books nobody checks":   {top.Worker, without("books_wrong"), "no worker measures books_wrong", "A program is gone"},
		"lost replies":          {top.Worker, with(`psp_operations_waiting{state="unknown"}`, "101"), "reply was lost: 101", "Operations at the PSP"},
		"slow claims":           {top.API, more(slowClaims), "claiming keys takes 10 ms (p99)", "Requests fail"},
		"repeats too early":     {top.API, with(`idempotency_requests_total{outcome="in_progress"}`, "400"), "of the requests repeat one in progress", "Symptoms"},
		"a parked event":        {top.Consumer, with("inbox_dead_letters", "3"), "3 events cannot be processed", "Dead letters"},
		"a parked webhook":      {top.Worker, with("inbox_dead_letters", "1"), "one event cannot be processed: worker dead-letters list", "Dead letters"},
		"events that fail":      {top.Consumer, with(`inbox_events_total{outcome="failed"}`, "5"), "1.0/s events fail at the consumer", "Symptoms"},
		"a lost event":          {top.Consumer, with(`inbox_sequence_gaps_total{kind="missing"}`, "2"), "event numbers that are missing at the consumer: 2", "Numbers that do not follow"},
		"a repeated number":     {top.Consumer, with(`inbox_sequence_gaps_total{kind="repeated"}`, "2"), "event numbers that are repeated at the consumer: 2", "Numbers that do not follow"},
		"the first number":      {top.Consumer, with(`inbox_sequence_gaps_total{kind="unknown"}`, "2"), "", ""},
		"a short memory":        {top.Consumer, with("inbox_retention_short", "1"), "what the inbox would have forgotten", "How long the inbox remembers"},
		"late holds":            {top.Worker, with("expiry_oldest_overdue_seconds", "3700"), "over for 1h 1m", "Holds are not released"},
		"late charges":          {top.Worker, with("psp_oldest_operation_seconds", "301"), "an operation at the PSP has waited for 5m 1s", "Operations at the PSP"},
		"charges of 5 minutes":  {top.Worker, with("psp_oldest_operation_seconds", "299"), "", ""},
		"late webhooks":         {top.Worker, with("webhooks_oldest_due_seconds", "90"), "a webhook has been due for 1m 30s", "Symptoms"},
		"an open breaker":       {top.Worker, with(`psp_breaker{state="open"}`, "1"), "the breaker is open", "Operations at the PSP"},
		"an operator is needed": {top.Worker, with(`psp_operations_waiting{state="operator"}`, "2"), "wait for an operator: 2", "Operations at the PSP"},
		"a webhook of the PSP":  {top.API, with(`psp_webhooks_total{outcome="unbookable"}`, "2"), "contradict our books: 2", "Operations at the PSP"},
		"a contradiction":       {top.Worker, with(`psp_conflicts_total{kind="charge"}`, "1"), "contradict our books: 1", "Operations at the PSP"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changes := map[string]func(string) string{top.API: quiet}
			if c.change != nil {
				changes[c.program] = c.change
			}
			if c.program == top.API && c.change != nil {
				changes[top.API] = func(text string) string { return c.change(quiet(text)) }
			}

			wrong := recorded(t, changes).Figures().Wrong
			switch {
			case c.text == "" && len(wrong) == 0:
			case c.text == "" || len(wrong) != 1:
				t.Errorf("wrong: %+v", wrong)
			case !strings.Contains(wrong[0].Text, c.text) || wrong[0].Read != c.read:
				t.Errorf("wrong: %+v", wrong[0])
			}
		})
	}
}

// quiet takes away what the demo does on purpose, using keys twice, and its machine's slow claims.
func quiet(text string) string {
	text = with(`idempotency_requests_total{outcome="mismatch"}`, "113", `idempotency_requests_total{outcome="in_progress"}`, "113")(text)
	return without("idempotency_claim_seconds")(text)
}

// slowClaims are five that took 5 to 10 ms.
const slowClaims = `idempotency_claim_seconds_bucket{le="0.005"} 0
idempotency_claim_seconds_bucket{le="0.01"} 5
idempotency_claim_seconds_bucket{le="+Inf"} 5
idempotency_claim_seconds_count 5`

func replace(old, new string) func(string) string {
	return func(text string) string { return strings.Replace(text, old, new, 1) }
}

func more(line string) func(string) string {
	return func(text string) string { return text + line + "\n" }
}

// TestNothingIsMissingYet: a program that has just started has not measured everything.
func TestNothingIsMissingYet(t *testing.T) {
	t.Parallel()
	relay := target(top.Relay)
	for seconds, silent := range map[int]bool{100: false, 130: true} {
		w := top.NewWatch([]top.Target{relay})
		text := "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.7e+09\n"
		at := time.Unix(1_700_000_000+int64(seconds), 0)
		if err := w.Keep(relay, at, strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		if found := len(w.Figures().Wrong) > 0; found != silent {
			t.Errorf("after %d s: %v", seconds, w.Figures().Wrong)
		}
	}
}

// TestRunbookHasEveryHeading: an operator who is sent there finds it.
func TestRunbookHasEveryHeading(t *testing.T) {
	t.Parallel()
	runbook, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, heading := range top.Headings {
		if !strings.Contains(string(runbook), "\n## "+heading+"\n") {
			t.Errorf("docs/operating.md has no heading %q", heading)
		}
	}
}
