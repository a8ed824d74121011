package kafka

import (
	"bytes"
	stdcmp "cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/testenv"
)

// decoded is what encoding/json makes of one value, numbers with all their digits.
func decoded(object []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(object))
	d.UseNumber()
	return d.Decode(v)
}

func FuzzHeadersMatchEncodingJSON(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"a": "b"}`, `{"a": "b", "c": "d"}`, `{"": ""}`, `{"a": "\"}"}`, `{"a\\": "b"}`, `{"a": "\u00fc<&>"}`, `{"a":"b"}`,
		`{"n": 12345678901234567890, "big": 1e400, "small": 1.50}`, `{"a": null, "b": [7, null, {"c": "<"}], "c": true}`,
		`{"a": "b", "n": 1, "z": "\ud83d\ude00"}`, `{"a": ", \": "}`, `{"a": "b"} `, `{"a": "b", }`, `{"a": `, `[]`, `"`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, object []byte) {
		told := map[string]string{}
		eachHeader(object, func(name string, value []byte) { told[name] = string(value) })
		var want map[string]any
		if !json.Valid(object) || !utf8.Valid(object) || decoded(object, &want) != nil || want == nil {
			return // Postgres gives no such thing; it need only not panic
		}
		for name, value := range want {
			if text, is := value.(string); is {
				if told[name] != text {
					t.Errorf("%q: %q, want %q", name, told[name], text)
				}
				continue
			}
			var got any
			if err := decoded([]byte(told[name]), &got); err != nil || !cmp.Equal(got, value) {
				t.Errorf("%q: %q, want %v", name, told[name], value)
			}
		}
		if len(told) != len(want) {
			t.Errorf("told of %d members, there are %d", len(told), len(want))
		}
	})
}

// byHand are headers as somebody may write them in SQL.
var byHand = []string{
	`{}`, `{"a": "b"}`, `{"traceparent":"00-1-2-01","x":""}`, `{"": "empty name"}`, `{"quoted \"name\"": "quoted \"value\""}`,
	`{"back\\slash": "\\"}`, `{"n": 12345678901234567890, "f": 1.50, "big": 1e400}`, `{"null": null, "yes": true, "no": false}`,
	`{"list": [1, "a", null], "object": {"b": {"c": "d"}}}`, `{"ü": "日本 😀", "escaped": "\u00fc\n\t"}`, `{"z": "last", "aa": "first", "b": 1}`,
	`{"html": "<a href='x'>&</a>", "n": 1}`, `{"comma": ", \": ", "brace": "}"}`, "  {\n  \"spaced\" :\t\"out\"  }", `{"twice": "no", "twice": "yes"}`,
}

func TestHeadersMatchPostgres(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t).Pool(t, "")
	type member struct{ Object, Name, Value string }
	var want, got []member
	for _, object := range byHand {
		// #>> '{}' is a string as it is; white space is Postgres' own between members.
		rows, _ := db.Query(t.Context(), `SELECT $1::jsonb::text, key, CASE WHEN jsonb_typeof(value) = 'string' THEN value #>> '{}'
			WHEN jsonb_typeof(value) IN ('array', 'object') THEN replace(replace(value::text, ', ', ','), ': ', ':') ELSE value::text END
			FROM jsonb_each($1)`, object)
		members, err := pgx.CollectRows(rows, pgx.RowToStructByPos[member])
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, members...)
		if len(members) > 0 {
			text := members[0].Object
			eachHeader([]byte(text), func(name string, value []byte) { got = append(got, member{text, name, string(value)}) })
		}
	}
	byName := func(a, b member) int {
		return stdcmp.Or(strings.Compare(a.Object, b.Object), strings.Compare(a.Name, b.Name))
	}
	slices.SortFunc(want, byName)
	slices.SortFunc(got, byName)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("headers (-Postgres +eachHeader):\n%s", diff)
	}
}

func TestRecordOfEmptyPayloadIsNoTombstone(t *testing.T) {
	t.Parallel()
	r := new(encoder).records(Producer{}, []relay.Message{{Payload: []byte{}, Headers: []byte("{}")}})[0]
	if r.Value == nil || r.Key == nil || len(r.Value)+len(r.Key) != 0 {
		t.Errorf("key %v, value %v", r.Key, r.Value)
	}
}

func TestHeadersOfAppendTakeFastPath(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	const letters = `abcxyz-_:;, {}[]'/<>&=+ü日😀`
	text := func() (s string) {
		for range random.IntN(30) {
			s += string([]rune(letters)[random.IntN(len([]rune(letters)))])
		}
		return s
	}
	for range 2000 {
		want, members := map[string]string{}, []string(nil)
		for range random.IntN(20) {
			name := text()
			if _, is := want[name]; !is {
				want[name] = text()
				members = append(members, `"`+name+`": "`+want[name]+`"`) // as Postgres writes it
			}
		}
		object, got := []byte("{"+strings.Join(members, ", ")+"}"), map[string]string{}
		if _, plain := plainMembers(object, nil); !plain {
			t.Fatalf("not read the fast way: %s", object)
		}
		eachHeader(object, func(name string, value []byte) { got[name] = string(value) })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", object, diff)
		}
	}
}

func TestRecordIDIsCanonicalUUID(t *testing.T) {
	t.Parallel()
	for range 1000 {
		id := uuid.New()
		r := new(encoder).records(Producer{}, []relay.Message{{EventID: id, Headers: []byte("{}")}})[0]
		if h := r.Headers[1]; h.Key != "ce_id" || string(h.Value) != id.String() {
			t.Fatalf("%s %s, want %s", h.Key, h.Value, id)
		}
	}
}

// randomRecord has parts of any length, those above all at which a length takes one byte more.
func randomRecord(random *rand.Rand, topic string) *kgo.Record {
	some := func() []byte {
		edges := []int{0, 1, 63, 64, 65, 8191, 8192, 8193}
		b := make([]byte, max(0, edges[random.IntN(len(edges))]-random.IntN(8)))
		for i := range b {
			b[i] = byte(random.Uint32()) // nothing that a compressor could make smaller
		}
		return b
	}
	r := &kgo.Record{Topic: topic, Key: some(), Value: some()}
	for range []int{0, 1, 7, 63, 64}[random.IntN(5)] {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: string(some()[:0]) + fmt.Sprint(random.Uint32()), Value: some()[:0]})
	}
	if len(r.Headers) > 0 {
		r.Headers[0].Value = some()
	}
	return r
}

func TestRecordSizeMatchesClient(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.TopicPrefix(t)+"things"
	random := rand.New(rand.NewPCG(3, 4))
	for range 25 {
		r := randomRecord(random, topic)
		for _, c := range []struct {
			limit int
			takes bool
		}{{size(r), true}, {size(r) - 1, false}} {
			if c.limit < 512 {
				continue // the client insists on as much
			}
			client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ProducerBatchMaxBytes(int32(c.limit)))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 1, 1, nil, topic); err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
				t.Fatal(err)
			}
			again := *r
			err = client.ProduceSync(t.Context(), &again).FirstErr()
			client.Close()
			if (err == nil) != c.takes || err != nil && !errors.Is(err, kerr.MessageTooLarge) {
				t.Errorf("%d bytes where %d are allowed: %v", size(r), c.limit, err)
			}
		}
	}
}

// message is one whose payload cannot be made smaller.
func message(payload int) relay.Message {
	random, m := rand.New(rand.NewPCG(5, 6)), relay.Message{EventID: uuid.New(), AggregateType: "things", AggregateID: "a", Type: "thing.changed", Headers: []byte("{}")}
	m.Payload = make([]byte, payload)
	for i := range m.Payload {
		m.Payload[i] = byte(random.Uint32())
	}
	return m
}

func TestLargeRecordIsRefusedUnsent(t *testing.T) {
	t.Parallel()
	const limit = 20_000
	for _, once := range []bool{false, true} {
		t.Run(fmt.Sprintf("exactly once %t", once), func(t *testing.T) {
			t.Parallel()
			brokers, prefix := testenv.Brokers(t), testenv.TopicPrefix(t)
			raw, err := kgo.NewClient(kgo.SeedBrokers(brokers...)) // with Kafka's own limit
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(raw.Close)
			settings := map[string]*string{"max.message.bytes": kadm.StringPtr(fmt.Sprint(limit))}
			if _, err := kadm.NewClient(raw).CreateTopic(t.Context(), 1, 1, settings, prefix+"things"); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, 30*time.Second, func() error { // the broker agrees before it knows of it
				found, err := kadm.NewClient(raw).ListTopics(t.Context(), prefix+"things")
				if err == nil {
					err = found.Error()
				}
				return err
			})
			k := Producer{Brokers: brokers, TopicPrefix: prefix, Topics: []string{"things"}, ExactlyOnce: once}
			p, _, err := k.Open(t.Context(), "main", "")
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			one := func(m relay.Message) *kgo.Record { return new(encoder).records(k, []relay.Message{m})[0] }
			fits := limit - (size(one(message(10_000))) - 10_000)
			for i, payload := range []int{fits + 1, fits + 2, fits, 30_000, fits} {
				m := message(payload)
				err := p.Publish(t.Context(), []relay.Message{m}, relay.Progress{Position: relay.Position{Batches: int64(i + 1)}})
				var refused *relay.BatchError
				if payload <= fits && err != nil {
					t.Fatalf("%d bytes where %d are allowed: %v", size(one(m)), limit, err)
				}
				if payload > fits && (!errors.As(err, &refused) || !refused.Refused || !refused.Unsent || !errors.Is(err, kerr.MessageTooLarge)) {
					t.Errorf("%d bytes where %d are allowed: %v", size(one(m)), limit, err)
				}
			}
			// The broker does not count the four bytes that the client does.
			if err := raw.ProduceSync(t.Context(), one(message(fits+5))).FirstErr(); !errors.Is(err, kerr.MessageTooLarge) {
				t.Errorf("the broker itself, of five bytes more: %v", err)
			}
			if err := raw.ProduceSync(t.Context(), one(message(fits+4))).FirstErr(); err != nil {
				t.Errorf("the broker itself, of four bytes more: %v", err)
			}
		})
	}
}

func TestEventThatAppendAllowsFitsIntoRecord(t *testing.T) {
	t.Parallel()
	random, version := rand.New(rand.NewPCG(7, 8)), int64(1<<62)
	for range 50 {
		e := outbox.Event{AggregateType: "things", AggregateID: strings.Repeat("a", random.IntN(1000)), Type: strings.Repeat("t", random.IntN(100)), Headers: map[string]string{}}
		for i := range random.IntN(3000) {
			e.Headers[fmt.Sprint(i)] = strings.Repeat("v", random.IntN(50))
		}
		e.Payload = make([]byte, outbox.MaxEvent-e.Size())
		headers, err := json.Marshal(e.Headers)
		if err != nil {
			t.Fatal(err)
		}
		m := relay.Message{
			EventID: uuid.New(), AggregateType: e.AggregateType, AggregateID: e.AggregateID, AggregateVersion: &version, Type: e.Type,
			Payload: e.Payload, Headers: headers, CreatedAt: time.Date(2026, 1, 1, 0, 0, 0, 123_456_000, time.UTC),
		}
		r := new(encoder).records(Producer{Source: "/a-long-name-of-a-producing-system"}, []relay.Message{m})[0]
		if e.Size() != outbox.MaxEvent || size(r) > defaultMaxBytes {
			t.Errorf("an event of %d bytes with %d headers makes a record of %d, %d are allowed", e.Size(), len(e.Headers), size(r), defaultMaxBytes)
		}
	}
}

// What a publisher is given, and what it makes of it, shares memory with the batches before.
func TestRecordsSurviveNextBatch(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(9, 10))
	var e encoder
	for round := range 200 {
		batch := make([]relay.Message, random.IntN(50))
		for i := range batch {
			batch[i] = message(random.IntN(20))
			batch[i].AggregateID, batch[i].AggregateType = fmt.Sprint(random.IntN(1000)), fmt.Sprint("type", random.IntN(2000))
			if random.IntN(2) == 0 {
				batch[i].AggregateVersion = new(random.Int64())
			}
			for h := range random.IntN(4) {
				object, _ := json.Marshal(map[string]any{fmt.Sprint("h", h): strings.Repeat("v", random.IntN(100)), "n": random.IntN(9), "ce_id": "x"})
				batch[i].Headers = object
			}
		}
		k := Producer{TopicPrefix: "p.", Source: "/test"}
		got := e.records(k, batch)
		if len(got) != len(batch) {
			t.Fatalf("%d records of %d messages", len(got), len(batch))
		}
		for i, m := range batch {
			want := new(encoder).records(k, []relay.Message{m})[0] // alone, in memory of its own
			if !reflect.DeepEqual(want, got[i]) {                  // cmp takes seconds for so many
				t.Fatalf("round %d, record %d of %d (-alone +in a batch):\n%s", round, i, len(batch), cmp.Diff(want.Headers, got[i].Headers))
			}
		}
	}
}

func TestConsecutiveBatchesArriveUnchanged(t *testing.T) {
	t.Parallel()
	brokers, prefix := testenv.Brokers(t), testenv.TopicPrefix(t)
	k := Producer{Brokers: brokers, TopicPrefix: prefix, Topics: []string{"things"}, Source: "/test"}
	p, _, err := k.Open(t.Context(), "main", "")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	const batches, each = 20, 50
	want := map[string]string{}
	memory := make([]byte, 0, each*8) // as the reader's, which the next batch takes over
	for n := range batches {
		memory = memory[:0]
		batch := make([]relay.Message, each)
		for i := range batch {
			from := len(memory)
			memory = fmt.Appendf(memory, "%03d %03d", n, i)
			batch[i] = relay.Message{EventID: uuid.New(), AggregateType: "things", AggregateID: fmt.Sprint(i), Type: "t", Payload: memory[from:], Headers: []byte(`{"h": "` + string(memory[from:]) + `"}`)}
			want[batch[i].EventID.String()] = string(memory[from:])
		}
		if err := p.Publish(t.Context(), batch, relay.Progress{Position: relay.Position{Batches: int64(n + 1)}}); err != nil {
			t.Fatal(err)
		}
	}
	consumer, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(prefix+"things"))
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	got := map[string]string{}
	for len(got) < len(want) && ctx.Err() == nil {
		consumer.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			headers := map[string]string{}
			for _, h := range r.Headers {
				headers[h.Key] = string(h.Value)
			}
			got[headers["ce_id"]] = string(r.Value)
			if headers["h"] != string(r.Value) {
				t.Errorf("%s beside %s", headers["h"], r.Value)
			}
		})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func BenchmarkRecords(b *testing.B) {
	version, batch := int64(7), make([]relay.Message, 1000)
	for i := range batch {
		batch[i] = message(300)
		batch[i].AggregateVersion, batch[i].CreatedAt = &version, time.Unix(1_800_000_000, 0)
		batch[i].Headers = []byte(`{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}`)
	}
	var e encoder
	k := Producer{TopicPrefix: "p.", Source: "/test"}
	b.ReportAllocs()
	for b.Loop() {
		e.records(k, batch)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(batch)), "ns/event")
}
