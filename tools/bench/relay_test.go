package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/testenv"
)

func TestEachEventHasOneNumberAndEachAggregateOneWriter(t *testing.T) {
	t.Parallel()
	const each = 3 * aggregates / writers
	writerOf := map[string]int{}
	var numbers []int
	for w := range writers {
		before := 0
		for i := range each {
			n := numberFor(w, i)
			numbers = append(numbers, n)
			if n <= before {
				t.Fatalf("writer %d numbers an event %d after %d", w, n, before)
			}
			before = n
			if other, known := writerOf[keyOf(n)]; known && other != w {
				t.Fatalf("writers %d and %d both write %s", w, other, keyOf(n))
			}
			writerOf[keyOf(n)] = w
		}
	}
	slices.Sort(numbers)
	for i, n := range numbers {
		if n != i+1 { // 0 is the event before the traffic
			t.Fatalf("the event after %d has the number %d", i, n)
		}
	}
}

func TestLatencyIsOfWhatWasCommittedInTheWindow(t *testing.T) {
	t.Parallel()
	start := time.Now()
	window := span{start.Add(time.Second), start.Add(2 * time.Second)}
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	m := moments{
		//                   warm-up   first     next      next, before its writer knew of it   after    open for long
		committed: []time.Time{at(999), at(1000), at(1500), at(1999), at(2000), {}},
		consumed:  []time.Time{at(9000), at(1004), at(1508), at(1998), at(9000), at(9000)},
	}.measure(window)
	if n := m.latencies.TotalCount(); n != 3 || m.written != 3 {
		t.Errorf("%d events in the window, %g a second, want 3", n, m.written)
	}
	for percent, want := range map[float64]float64{10: .001, 50: 4, 99: 8} {
		if got := m.quantile(percent); math.Abs(got-want) > .01 {
			t.Errorf("p%g is %g ms, want %g", percent, got, want)
		}
	}
}

func TestRatiosSayHowManyTimesBetterOursIs(t *testing.T) {
	t.Parallel()
	f := figures{}
	f.compareDrains("_few", drained{perSecond: 60, relay: 2, postgres: 3, wal: 7, dead: 0},
		drained{perSecond: 10, relay: 20, postgres: 5, wal: 900, dead: 50})
	for name, want := range map[string]float64{
		"drain_ratio_few": 6, "cpu_ratio_few": 5, "drain_per_s_few": 60, "wal_bytes_per_event_few": 7, "dead_rows_few": 0, "tutorial_dead_rows_few": 50,
	} {
		if got := f.median(name); got != want {
			t.Errorf("%s is %g, want %g", name, got, want)
		}
	}
	latency := func(ms int64, written float64) paced {
		m := moments{}.measure(span{time.Time{}, time.Time{}.Add(time.Second)})
		_ = m.latencies.RecordValue(1000 * ms)
		m.written = written
		return m
	}
	f.compareSteady(500, latency(4, 500), latency(5, 460))
	if got := f.median("hold_ratio"); math.Abs(got-1.25) > .01 {
		t.Errorf("5 ms ÷ 4 ms is %g", got)
	}
	f.compareSteady(5000, latency(4, 4400), latency(4, 5000))
	for _, name := range []string{"p99_ms_5000", "hold_ratio_5000"} {
		if got := f.median(name); !math.IsNaN(got) {
			t.Errorf("%s is %g, although 4,400 events a second were written", name, got)
		}
	}
	if got := f.median("p99_ms_5000_hold"); math.Abs(got-4) > .01 {
		t.Errorf("the p99 at the rate that was to be is %g", got)
	}
}

func TestTheJSONOfRelayHasItsMembersMeasuredOrNot(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	b := relayBench{
		relayOptions: relayOptions{few: 1000, rounds: 1}, progress: progress{&out, time.Now()},
		figures: figures{"drain_ratio": {7}}, counts: counts{duplicates: 3},
	}
	b.broker.Name = "kfake"
	b.report("a machine")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	var got map[string]any
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &got); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"rounds", "broker", "missing", "out_of_order", "duplicates", "drain_per_s", "p99_ms_500", "p99_ms_500_hold", "hold_ratio", "p99_ms_5000",
		"p99_ratio_500", "exactly_once_ratio", "cpu_ratio", "wal_bytes_per_event", "dead_rows", "rss_mib", "idle_cpu", "idle_wal_bytes",
	} {
		if _, there := got[name]; !there {
			t.Errorf("%s is not there", name)
		}
	}
	if got["drain_ratio"] != 7.0 || got["duplicates"] != 3.0 || got["broker"] != "kfake" || got["p99_ms_500"] != nil {
		t.Errorf("%v", got)
	}
}

func TestATopicIsCountedAsAReaderOfWhatIsCommittedSeesIt(t *testing.T) {
	t.Parallel()
	on, err := makeTopic(t.Context(), testenv.Brokers(t), testenv.TopicPrefix(t))
	if err != nil {
		t.Fatal(err)
	}
	defer on.remove(context.Background())
	client, err := kgo.NewClient(kgo.SeedBrokers(on.brokers...), kgo.TransactionalID(on.prefix))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	send := func(end kgo.TransactionEndTry, numbers ...string) {
		t.Helper()
		if err := client.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for _, n := range numbers {
			r := &kgo.Record{Topic: on.name(), Key: []byte("a"), Value: []byte(`{"n":"000000000` + n + `"}`)}
			if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		if err := client.EndTransaction(t.Context(), end); err != nil {
			t.Fatal(err)
		}
	}
	send(kgo.TryCommit, "0", "2")
	send(kgo.TryAbort, "3")
	send(kgo.TryCommit, "1", "2")
	count, err := on.scan(t.Context(), 4)
	if err != nil {
		t.Fatal(err)
	}
	if want := (counted{missing: 1, duplicates: 1, outOfOrder: 1}); count.counted() != want || count.outside != 0 {
		t.Errorf("%+v and %d outside of transactions, want %+v", count.counted(), count.outside, want)
	}

	plain, err := kgo.NewClient(kgo.SeedBrokers(on.brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if err := plain.ProduceSync(t.Context(), &kgo.Record{Topic: on.name(), Key: []byte("a"), Value: []byte("no number")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if count, err = on.scan(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	if count.outside != 1 || count.strange != 1 {
		t.Errorf("%d outside of transactions, %d strange, want 1 and 1", count.outside, count.strange)
	}
}

func TestTheTutorialRelaySendsEachEventOnceAndMarksIt(t *testing.T) {
	t.Parallel()
	const events = 250
	url := testenv.EmptyDatabase(t).URL
	conn, err := connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, sql := range []string{payloadFunction, tutorialSchema} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := fill(t.Context(), url, tutorialTable, 0, events-2); err != nil {
		t.Fatal(err)
	}
	if err := insert(t.Context(), conn, tutorialTable, []int64{events - 2, events - 1}, []string{keyOf(0), keyOf(0)}); err != nil { // after event 0
		t.Fatal(err)
	}
	var wrong int
	err = conn.QueryRow(t.Context(), `SELECT count(*) FROM `+tutorialTable+` WHERE length(payload) <> $1`, payloadBytes).Scan(&wrong)
	if err != nil || wrong > 0 {
		t.Errorf("%d payloads are not of %d bytes (%v)", wrong, payloadBytes, err)
	}
	on, err := makeTopic(t.Context(), testenv.Brokers(t), testenv.TopicPrefix(t))
	if err != nil {
		t.Fatal(err)
	}
	defer on.remove(context.Background())

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var stderr bytes.Buffer
	go func() {
		ended <- tutorialRelay(ctx, func(name string) string {
			return map[string]string{"DATABASE_URL": url, "KAFKA_BROKERS": strings.Join(on.brokers, ","), "TOPIC_PREFIX": on.prefix}[name]
		}, &stderr)
	}()
	testenv.Eventually(t, time.Minute, func() error {
		var left int
		err := conn.QueryRow(t.Context(), `SELECT count(*) FROM `+tutorialTable+` WHERE published_at IS NULL`).Scan(&left)
		if err == nil && left > 0 {
			err = fmt.Errorf("%d events are not marked", left)
		}
		return err
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	count, err := on.scan(t.Context(), events)
	if err != nil {
		t.Fatal(err)
	}
	if got := count.counted(); got != (counted{}) {
		t.Errorf("%+v", got)
	}
	testenv.Eventually(t, time.Minute, func() error { // its sessions end after it has
		n, err := touched(t.Context(), conn, tutorialTable)
		if err == nil && n != events {
			err = fmt.Errorf("%d dead rows, want %d", n, events)
		}
		return err
	})
}

func TestEveryWrongFlagOfRelayIsOneClearLine(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"relay -fast":                   "flag provided but not defined: -fast",
		"relay now":                     `unknown argument "now"`,
		"relay -few 0":                  "-few must be 1000 to 5000000",
		"relay -few -1":                 "-few must be 1000 to 5000000",
		"relay -few lots":               "invalid value",
		"relay -many -5":                "-many must be more than -few",
		"relay -many 50000":             "-many must be more than -few",
		"relay -many 5000001":           "-many must be more than -few and up to 5000000",
		"relay -tutorial 10":            "-tutorial must be 1000 to 5000000",
		"relay -backlog 500000":         "-backlog must be more than -few and -many",
		"relay -backlog -1":             "-backlog must be more than -few and -many",
		"relay -backlog 99999999999":    "-backlog must be more than -few and -many and up to 20000000",
		"relay -seconds 0":              "-seconds must be 1 to 600",
		"relay -seconds 601":            "-seconds must be 1 to 600",
		"relay -rounds -1":              "-rounds must be 1 to 50",
		"relay -delivery at-most-once":  "-delivery must be both, at-least-once or exactly-once",
		"relay -relay relay_batch=5":    "NAME=VALUE",
		"relay -relay RELAY_NAME=other": "the benchmark sets it by itself",
		"relay -relay RELAY_DELIVERY=x": "the benchmark sets it by itself",
		"relay -smoke -rounds 2":        "-smoke decides by itself what -rounds asks for",
		"tutorial-relay":                "started by bench relay",
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), strings.Fields(args), &stdout, &stderr)
		said := stderr.String()
		if code != 1 || !strings.Contains(said, want) || strings.Count(said, "\n") != 1 || stdout.Len() > 0 {
			t.Errorf("bench %s: exit code %d, %q, want %q", args, code, said, want)
		}
	}
}

func TestTheHelpOfRelayHasExamples(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"-h", "relay -h", "relay --help"} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), strings.Fields(args), &stdout, &stderr)
		if code != 0 || !strings.Contains(stdout.String(), "go run ./tools/bench relay") || stderr.Len() > 0 {
			t.Errorf("bench %s: exit code %d\n%s%s", args, code, &stdout, &stderr)
		}
	}
}
