package invariant_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/internal/testenv"
)

func TestRepeatsAreCountedAndAllowedUpToWhatKillsExplain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.load(t)
	w.consume(t)
	w.messages = append(w.messages, w.messages...) // everything once more, in order
	n := len(w.messages) / 2
	w.publish(t)
	most := func(m int) func(*invariant.Sources) { return func(s *invariant.Sources) { s.MostRepeated = m } }
	r := w.check(t, most(n))
	wantWrong(t, r)
	if r.Repeated != int64(n) || r.Records != int64(2*n) {
		t.Errorf("%d repeats among %d records, want %d and %d", r.Repeated, r.Records, n, 2*n)
	}
	r = w.check(t, most(n-1))
	wantWrong(t, r, invariant.EventsRepeated)
	if wrong := r.Line(invariant.EventsRepeated).Wrong; wrong != 1 {
		t.Errorf("%d too many, want 1", wrong)
	}
}

func TestScanSkipsAbortedAndPassesMarkers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.load(t)
	w.consume(t)
	last := w.messages[len(w.messages)-1]
	w.messages = w.messages[:len(w.messages)-1]
	w.publish(t)
	client := w.kafka(t, kgo.TransactionalID(w.prefix+"t"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	produce := func(end kgo.TransactionEndTry, id string) {
		t.Helper()
		m := last
		if id != "" {
			m.EventID = uuid.MustParse(id)
		}
		if err := client.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		record := &kgo.Record{Topic: w.prefix + "orders", Partition: w.usedPartition(t, "orders"), Key: []byte("7"), Value: m.Payload, Headers: headersOf(&m)}
		if err := client.ProduceSync(t.Context(), record).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := client.EndTransaction(t.Context(), end); err != nil {
			t.Fatal(err)
		}
	}
	produce(kgo.TryAbort, uuid.NewString())
	produce(kgo.TryCommit, "") // the last event itself: before it an aborted one, behind it a marker
	produce(kgo.TryAbort, uuid.NewString())
	r := w.check(t)
	wantWrong(t, r)
	if r.Records != r.Events {
		t.Errorf("%d records of %d events", r.Records, r.Events)
	}
}

func TestAnOpenTransactionIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.settle(t)
	client := w.kafka(t, kgo.TransactionalID(w.prefix+"t"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err := client.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	defer client.EndTransaction(context.Background(), kgo.TryAbort)
	if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: w.prefix + "orders", Value: []byte("open")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	wantWrong(t, w.check(t))
}

func TestNothingAtAllIsNoDefectAndIsSeenAsNothing(t *testing.T) {
	t.Parallel()
	w := &world{db: testenv.Database(t).Pool(t, ""), brokers: testenv.Brokers(t), prefix: testenv.TopicPrefix(t)}
	for _, topics := range []string{"no topics", "empty topics"} {
		if topics == "empty topics" {
			w.publish(t) // makes them
		}
		r := w.check(t)
		wantWrong(t, r)
		for _, line := range r.Lines {
			if line.Of != 0 {
				t.Errorf("%s: %s looked at %d", topics, line.Name, line.Of)
			}
		}
		var table bytes.Buffer
		if err := r.WriteTable(&table); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(table.String(), "none  "); n != len(r.Lines) || strings.Contains(table.String(), "ok  ") {
			t.Errorf("%s: %d of %d lines say none:\n%s", topics, n, len(r.Lines), &table)
		}
	}
}

func TestWhatWasDroppedForItsAgeIsNotMissed(t *testing.T) {
	t.Parallel()
	t.Run("days of the outbox and of the answers", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.load(t)
		for i := range w.messages {
			w.messages[i].CreatedAt = w.messages[i].CreatedAt.AddDate(0, 0, -30)
		}
		w.publish(t)
		w.consume(t)
		w.exec(t, `UPDATE payments SET processed_at = processed_at - interval '30 days'`)
		w.exec(t, `UPDATE refunds SET processed_at = processed_at - interval '30 days'`)
		w.exec(t, `UPDATE payment_commands SET processed_at = processed_at - interval '30 days'`)
		w.exec(t, `UPDATE accounts SET created_at = created_at - interval '30 days'`)
		w.exec(t, `DELETE FROM outbox_events`)
		w.exec(t, `DELETE FROM idempotency_keys`)
		wantWrong(t, w.check(t))
	})
	t.Run("records of the topics", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		// Of last week, all but the orders.
		w.exec(t, `UPDATE outbox_events SET created_at = created_at - interval '6 days', event_id = overlay(event_id::text PLACING '0180' FROM 1)::uuid
			WHERE aggregate_type <> 'orders'`)
		w.load(t)
		w.consume(t)
		w.messages = w.messages[:len(w.messages)-1]
		w.publish(t)
		wantWrong(t, w.check(t), invariant.EventsLost)
		w.forget(t, "payments")
		r := w.check(t)
		wantWrong(t, r, invariant.EventsLost) // the one of today
		if line := r.Line(invariant.EventsLost); line.Wrong != 1 || line.Of != 3 {
			t.Errorf("%d of %d events lost, want 1 of the 3 orders", line.Wrong, line.Of)
		}
	})
}

// forget deletes the first record of every partition of a topic that has more, as retention does.
func (w *world) forget(t *testing.T, aggregateType string) {
	t.Helper()
	offsets := kadm.Offsets{}
	ends, err := w.admin(t).ListEndOffsets(t.Context(), w.prefix+aggregateType)
	if err != nil {
		t.Fatal(err)
	}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 1 {
			offsets.AddOffset(o.Topic, o.Partition, 1, -1)
		}
	})
	deleted, err := w.admin(t).DeleteRecords(t.Context(), offsets)
	if err == nil {
		err = deleted.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestAKeyMayPayAgainWhenItsAnswerHasExpired(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	again := w.pay(t, w.a, w.b, w.history[4].AmountMinor)[0]
	w.exec(t, `UPDATE payments SET idempotency_key = $1 WHERE idempotency_key = $2`, w.history[4].Key, again.Key)
	w.exec(t, `DELETE FROM idempotency_keys WHERE key = $1`, again.Key)
	w.exec(t, `UPDATE payments SET processed_at = processed_at - interval '73 hours' WHERE request_id = $1`, w.requestOf(t, w.history[4].Key))
	w.settle(t)
	w.exec(t, `INSERT INTO idempotency_retention (keep) VALUES ('96 hours')`)
	wantWrong(t, w.check(t), invariant.KeysTwice)
	w.exec(t, `UPDATE idempotency_retention SET keep = '72 hours'`)
	wantWrong(t, w.check(t))
}

func TestWithoutAHistoryItsLinesAreLeftOutAndTheReportSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.settle(t)
	r := w.check(t, func(s *invariant.Sources) { s.History = nil })
	wantWrong(t, r)
	want := []string{invariant.AcknowledgedMissing, invariant.NobodyAskedFor, invariant.AnswersChanged, invariant.ReusedKeysAccepted, invariant.RefusedForNothing, invariant.RepeatsUnmarked}
	if diff := cmp.Diff(want, r.LeftOut); diff != "" {
		t.Errorf("left out (-want +got):\n%s", diff)
	}
	if line := r.Line(invariant.AnswersChanged); line.Name != "" {
		t.Errorf("counted without a history: %+v", line)
	}
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil || strings.Count(table.String(), "not counted: no source for it") != 6 {
		t.Errorf("%v\n%s", err, &table)
	}
}

func TestWithoutBrokersTheTablesAreCountedAllTheSame(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.load(t) // nothing is published, nothing consumed
	tablesOnly := func(s *invariant.Sources) { s.Brokers, s.TopicPrefix, s.Consumer = nil, "", "" }
	r := w.check(t, tablesOnly)
	wantWrong(t, r)
	want := []string{invariant.EventsLost, invariant.EventsPhantom, invariant.EventsChanged, invariant.EventsRepeated, invariant.EventsOutOfOrder,
		invariant.EffectsLost, invariant.EffectsPhantom, invariant.StatementsWrong}
	if diff := cmp.Diff(want, r.LeftOut); diff != "" {
		t.Errorf("left out (-want +got):\n%s", diff)
	}
	for _, line := range r.Lines {
		if line.Of == 0 {
			t.Errorf("%s: looked at nothing", line.Name)
		}
	}
	w.exec(t, `UPDATE accounts SET balance_minor = balance_minor + 1 WHERE id = $1`, w.a)
	w.exec(t, `DELETE FROM outbox_events WHERE aggregate_id = $1`, w.b.String())
	wantWrong(t, w.check(t, tablesOnly), invariant.BalancesWrong, invariant.EventsMissing)
}

func TestWithoutThePSPsBooksTheirLinesAreLeftOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.settle(t)
	r := w.check(t, func(s *invariant.Sources) { s.PSP = nil })
	wantWrong(t, r)
	want := []string{invariant.ChargedTwice, invariant.ChargedUnbooked, invariant.BookedUncharged, invariant.PSPDiffers}
	if diff := cmp.Diff(want, r.LeftOut); diff != "" {
		t.Errorf("left out (-want +got):\n%s", diff)
	}
	// Empty books are books.
	wantWrong(t, w.check(t, func(s *invariant.Sources) { s.PSP = []invariant.PSPEntry{} }), invariant.BookedUncharged)
}

func TestAHistoryThatCannotBeReadIsAnErrorThatNamesTheLine(t *testing.T) {
	t.Parallel()
	w := &world{db: testenv.Database(t).Pool(t, ""), brokers: testenv.Brokers(t), prefix: testenv.TopicPrefix(t)}
	x := invariant.Exchange{ClientID: uuid.New(), Key: "k", Request: digest("r"), Command: invariant.Pay, Status: 201, Answer: digest("a")}
	w.history = []invariant.Exchange{x}
	written, err := os.ReadFile(w.historyFile(t))
	if err != nil {
		t.Fatal(err)
	}
	good := string(written)
	for name, c := range map[string]struct{ content, want string }{
		"torn last line":      {good + good[:40], "line 2: it is cut off"},
		"without its newline": {good + strings.TrimSpace(good), "line 2: it is cut off"},
		"malformed":           {good + good + "{nonsense}\n" + good, "line 3: not an exchange"},
		"empty line":          {good + "\n", "line 2: not an exchange"},
		"no client":           {`{"key":"k","request":"` + x.Request + `"}` + "\n", "line 1: no client_id"},
		"no key":              {strings.Replace(good, `"key":"k"`, `"key":""`, 1), "line 1: no key"},
		"short digest":        {strings.Replace(good, x.Request, x.Request[2:], 1), "line 1: request is not the hex SHA-256"},
		"no command":          {strings.Replace(good, `"pay"`, `"buy"`, 1), `line 1: command is "buy"`},
		"of no payment":       {strings.Replace(good, `"pay"`, `"capture"`, 1), "line 1: command capture with payment_id 0000"},
		"no digest":           {strings.Replace(good, x.Answer, "", 1), "line 1: status 201 without the digest"},
		"no status":           {strings.Replace(good, "201", "20", 1), "line 1: status is 20"},
		"U+0000":              {strings.Replace(good, `"key":"k"`, `"key":"\u0000"`, 1), "line 1: a text with the character U+0000"},
		"endless line":        {strings.Repeat("x", 1<<20+1), "line 1: longer than"},
	} {
		file := filepath.Join(t.TempDir(), "clients.jsonl")
		if err := os.WriteFile(file, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := invariant.Check(t.Context(), invariant.Sources{DB: w.db, Brokers: w.brokers, TopicPrefix: w.prefix, History: []string{file}})
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), file) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := invariant.Check(t.Context(), invariant.Sources{DB: w.db, Brokers: w.brokers, History: []string{"nowhere"}}); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("no file: %v", err)
	}
}

func TestThePoolOfAProgramWillDoAndIsLeftAsItWas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.settle(t)
	pool, err := postgres.Open(t.Context(), w.db.Config().ConnString(), "test", 1, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	wantWrong(t, w.check(t, func(s *invariant.Sources) { s.DB = pool }))
	var scans, table string
	if err := pool.QueryRow(t.Context(), `SELECT current_setting('enable_seqscan'), coalesce(to_regclass('topic_records')::text, 'none')`).Scan(&scans, &table); err != nil {
		t.Fatal(err)
	}
	if scans != "off" || table != "none" {
		t.Errorf("the next user of the pool has enable_seqscan %s, temporary table %s", scans, table)
	}
}

func TestWhoMayNotSeeEveryRowIsToldSo(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	if _, err := db.Pool(t, "").Exec(t.Context(), `GRANT SELECT ON ALL TABLES IN SCHEMA public TO api_read`); err != nil {
		t.Fatal(err)
	}
	_, err := invariant.Check(t.Context(), invariant.Sources{DB: db.Pool(t, "api_read"), Brokers: testenv.Brokers(t), TopicPrefix: testenv.TopicPrefix(t)})
	if err == nil || !strings.Contains(err.Error(), "row-level security") {
		t.Errorf("a role that sees a part of the rows: %v", err)
	}
}

func TestABrokerThatIsNotThereIsAnErrorAndNoFinding(t *testing.T) {
	t.Parallel()
	pool := testenv.Database(t).Pool(t, "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := invariant.Check(ctx, invariant.Sources{DB: pool, Brokers: []string{"127.0.0.1:1"}}); err == nil {
		t.Error("no error")
	}
}

func TestATableShowsWhatIsWrong(t *testing.T) {
	t.Parallel()
	r := invariant.Report{
		Lines: []invariant.Line{
			{Name: invariant.EventsLost, Of: 12, Unit: "events"},
			{Name: invariant.EventsPhantom, Wrong: 2, Of: 12, Unit: "records", Examples: []string{"payments partition 1 offset 2", "payments partition 3 offset 4"}},
			{Name: invariant.EffectsLost, Unit: "records"},
		},
		LeftOut: []string{invariant.AnswersChanged},
	}
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	want := `       must never happen               found     among
ok     events lost                         0        12 events
WRONG  phantom events                      2        12 records
       payments partition 1 offset 2, payments partition 3 offset 4
none   effects lost                        0         0 records
-      answers changed                not counted: no source for it
`
	if diff := cmp.Diff(want, table.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAReportNamesTheLinesThatAreWrong(t *testing.T) {
	t.Parallel()
	r := invariant.Report{Lines: []invariant.Line{
		{Name: invariant.EventsLost, Of: 12, Unit: "events"},
		{Name: invariant.EventsPhantom, Wrong: 2, Of: 12},
		{Name: invariant.BalancesWrong, Wrong: 1, Of: 3},
	}}
	if diff := cmp.Diff(map[string]int64{invariant.EventsPhantom: 2, invariant.BalancesWrong: 1}, r.Wrong()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	r.Lines = r.Lines[:1]
	if diff := cmp.Diff(map[string]int64{}, r.Wrong()); diff != "" {
		t.Errorf("when all is well (-want +got):\n%s", diff)
	}
}

func TestProgressIsToldByStage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.settle(t)
	var told []string
	w.check(t, func(s *invariant.Sources) { s.Progress = func(doing string) { told = append(told, doing) } })
	for _, want := range []string{"find topics", "read topics: 0 of 49 records", "count " + invariant.BalancesWrong} {
		if !slices.Contains(told, want) {
			t.Errorf("not told: %q, but %q", want, told)
		}
	}
}

func (w *world) requestOf(t *testing.T, key string) (id string) {
	t.Helper()
	if err := w.db.QueryRow(t.Context(), `SELECT request_id FROM payments WHERE idempotency_key = $1 ORDER BY id LIMIT 1`, key).Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}
