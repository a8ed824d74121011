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
	"github.com/oncepay/oncepay/tools/rig"
)

func TestWriterHasItsOwnAggregates(t *testing.T) {
	t.Parallel()
	const each = 3 * aggregates / writers
	writerOf := map[int]int{}
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
			if other, known := writerOf[n%aggregates]; known && other != w {
				t.Fatalf("writers %d and %d both write account-%d", w, other, n%aggregates)
			}
			writerOf[n%aggregates] = w
		}
	}
	slices.Sort(numbers)
	for i, n := range numbers {
		if n != i+1 { // 0 is the event before the traffic
			t.Fatalf("the event after %d has the number %d", i, n)
		}
	}
}

func TestLatencyIsOfTheWindow(t *testing.T) {
	t.Parallel()
	start := time.Now()
	window := span{start.Add(time.Second), start.Add(2 * time.Second)}
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	m := moments{
		//                   warm-up   first     next      next, before its writer knew of it   after    open for long
		committed: []time.Time{at(999), at(1000), at(1500), at(1999), at(2000), {}},
		consumed:  []time.Time{at(9000), at(1004), at(1508), at(1998), at(9000), at(9000)},
	}.measure(window, 3)
	if m["written_per_s"] != 3 {
		t.Errorf("%g events a second in the window, want 3", m["written_per_s"])
	}
	for what, want := range map[string]float64{"p50_ms": 4, "p99_ms": 8} {
		if got := m[what]; math.Abs(got-want) > .01 {
			t.Errorf("%s is %g ms, want %g", what, got, want)
		}
	}
}

func TestLatencyAtAnotherRateIsNoFigure(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := moments{committed: []time.Time{start}, consumed: []time.Time{start.Add(time.Millisecond)}}
	window := span{start, start.Add(time.Second)}
	if m := at.measure(window, 2); !math.IsNaN(m["p99_ms"]) || !math.IsNaN(m["p50_ms"]) || m["written_per_s"] != 1 {
		t.Errorf("%v, although half of the rate was written", m)
	}
	if m := at.measure(window, 1); math.Abs(m["p99_ms"]-1) > .01 {
		t.Errorf("%v", m)
	}
}

func TestRatiosOfRelay(t *testing.T) {
	t.Parallel()
	f := figures{}
	f.add(ours.name, measured{"per_s": 60, "cpu_ms": 5, "wal_bytes": 7, "dead_rows": 0}, "")
	f.add(tutorial.name, measured{"per_s": 10, "cpu_ms": 25, "wal_bytes": 900, "dead_rows": 50}, "")
	got := members(t, f, drainTable)
	for name, want := range map[string]float64{
		"drain_ratio": 6, "cpu_ratio": 5, "drain_per_s": 60, "wal_bytes_per_event": 7, "dead_rows": 0,
		"tutorial_dead_rows": 50,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %g", name, got[name], want)
		}
	}

	f.add("ours_500", measured{"p99_ms": 4}, "")
	f.add("hold_500", measured{"p99_ms": 5}, "")
	f.add("tutorial_500", measured{"p99_ms": 400}, "")
	f.add("ours_5000", measured{"p99_ms": math.NaN()}, "")
	f.add("hold_5000", measured{"p99_ms": 4}, "")
	got = members(t, f, relayTable)
	for name, want := range map[string]any{
		"hold_ratio": 1.25, "p99_ratio_500": 100.0, "p99_ms_5000": nil, "hold_ratio_5000": nil,
		"p99_ms_5000_hold": 4.0,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}

func TestJSONOfRelayHasEveryFigure(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	b := relayBench{bench: &bench{
		options: options{few: 1000, rounds: 1}, Progress: rig.NewProgress(&out),
		figures: figures{"ours_per_s": {7}, "tutorial_per_s": {1}},
	}, total: counts{duplicates: 3}}
	b.broker.Name = "kfake"
	b.report()
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
	if got["drain_ratio"] != 7.0 || got["duplicates"] != 3.0 || got["missing"] != 0.0 || got["broker"] != "kfake" || got["p99_ms_500"] != nil {
		t.Errorf("%v", got)
	}
}

func TestScanSeesCommittedRecords(t *testing.T) {
	t.Parallel()
	on, err := makeTopic(t.Context(), testenv.Brokers(t), testenv.TopicPrefix(t))
	if err != nil {
		t.Fatal(err)
	}
	defer on.remove(context.Background())
	client, err := kgo.NewClient(kgo.SeedBrokers(on.brokers...), kgo.TransactionalID(on.name))
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
			r := &kgo.Record{Topic: on.name, Key: []byte("a"), Value: []byte(`{"n":"000000000` + n + `"}`)}
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
	if err := plain.ProduceSync(t.Context(), &kgo.Record{Topic: on.name, Key: []byte("a"), Value: []byte("no number")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if count, err = on.scan(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	if count.outside != 1 || count.strange != 1 {
		t.Errorf("%d outside of transactions, %d strange, want 1 and 1", count.outside, count.strange)
	}
}

func TestTutorialRelaySendsEachEventOnce(t *testing.T) {
	t.Parallel()
	const events = 250
	url := testenv.EmptyDatabase(t).URL
	conn, err := rig.Connect(t.Context(), url)
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
	first := "account-0"
	if err := insert(t.Context(), conn, tutorialTable, []int64{events - 2, events - 1}, &first); err != nil { // after event 0
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
			return map[string]string{"DATABASE_URL": url, "KAFKA_BROKERS": strings.Join(on.brokers, ","), "TOPIC_PREFIX": strings.TrimSuffix(on.name, "payments")}[name]
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
		n, err := deadRows(t.Context(), url, tutorialTable)
		if err == nil && n != events {
			err = fmt.Errorf("%d dead rows, want %d", n, events)
		}
		return err
	})
}

func TestWrongFlagOfRelayIsOneLine(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"relay -fast":                   "flag provided but not defined: -fast",
		"relay now":                     `unknown argument "now"`,
		"relay -few 0":                  "for flag -few: must be 1000 to 5000000",
		"relay -few -1":                 "for flag -few: must be 1000 to 5000000",
		"relay -few lots":               "invalid value",
		"relay -many -5":                "for flag -many: must be 0 to 5000000",
		"relay -many 50000":             "more than the one before",
		"relay -many 5000001":           "for flag -many: must be 0 to 5000000",
		"relay -tutorial 10":            "for flag -tutorial: must be 1000 to 5000000",
		"relay -backlog 500000":         "more than the one before",
		"relay -backlog -1":             "for flag -backlog: must be 0 to 20000000",
		"relay -backlog 99999999999":    "for flag -backlog: must be 0 to 20000000",
		"relay -seconds 0":              "for flag -seconds: must be 1 to 600",
		"relay -seconds 601":            "for flag -seconds: must be 1 to 600",
		"relay -rounds -1":              "for flag -rounds: must be 1 to 50",
		"relay -relay relay_batch=5":    "NAME=VALUE",
		"relay -relay RELAY_NAME=other": "the benchmark sets it itself",
		"relay -relay RELAY_DELIVERY=x": "the benchmark sets it itself",
		"relay -smoke -rounds 2":        "-smoke decides about -rounds",
		"tutorial-relay":                "started by bench relay",
	} {
		var stdout, stderr bytes.Buffer
		code := rig.Run(t.Context(), "bench", strings.Fields(args), &stdout, &stderr, command)
		said := stderr.String()
		if code != 1 || !strings.Contains(said, want) || strings.Count(said, "\n") != 1 || stdout.Len() > 0 {
			t.Errorf("bench %s: exit code %d, %q, want %q", args, code, said, want)
		}
	}
}

func TestHelpOfRelayHasExamples(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"-h", "relay -h", "relay --help"} {
		var stdout, stderr bytes.Buffer
		code := rig.Run(t.Context(), "bench", strings.Fields(args), &stdout, &stderr, command)
		if code != 0 || !strings.Contains(stdout.String(), "go run ./tools/bench relay") || stderr.Len() > 0 {
			t.Errorf("bench %s: exit code %d\n%s%s", args, code, &stdout, &stderr)
		}
	}
}
