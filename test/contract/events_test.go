package contract_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/api"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/relay/kafka"
	"github.com/oncepay/oncepay/internal/testenv"
)

// event is one message type on its topic, which is the prefix and the aggregate type.
type event struct{ Topic, Type string }

// defaultPrefix is what asyncapi.yaml assumes; others are set by TOPIC_PREFIX.
const defaultPrefix = "oncepay."

// happen makes everything happen that has an event, and something that has none.
func (s *service) happen(t *testing.T) {
	t.Helper()
	s.do(t, payments.CreatePayment{
		AmountMinor: 7, Currency: "USD", SourceAccount: s.rich, DestinationAccount: s.poor,
		Description: "<é>\n", Metadata: map[string]string{"order": "4711"}, ClientReference: "r-1",
	})
	s.do(t, payments.CreatePayment{AmountMinor: payments.MaxAmount, Currency: "USD", SourceAccount: s.poor, DestinationAccount: s.rich})
	s.do(t, payments.CreatePayment{AmountMinor: 1, Currency: "USD", SourceAccount: s.poor, DestinationAccount: uuid.New()})

	s.do(t, payments.CapturePayment{Target: s.authorized(t, 10, time.Hour), AmountMinor: 9})
	s.do(t, payments.CancelPayment{Target: s.authorized(t, 10, time.Hour)})
	s.authorized(t, 10, time.Millisecond)
	s.expire(t)
	paid := s.paid(t, 5)
	s.do(t, payments.RefundPayment{Target: paid, AmountMinor: 2, Reason: "<é>\n", Metadata: map[string]string{"return": "r-9"}})
	s.empty(t, s.poor)
	s.do(t, payments.RefundPayment{Target: paid})
	s.do(t, payments.CancelPayment{Target: paid})
	s.happenByCard(t)
	s.gone(t)
}

func TestEventsInTheOutboxAreThoseDescribed(t *testing.T) {
	t.Parallel()
	s, schemas := start(t), payloadSchemas(t)
	s.happen(t)
	rows, err := s.owner.Query(t.Context(), `SELECT aggregate_type, event_type, aggregate_id, payload FROM outbox_events ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	var aggregate, kind, id string
	var payload []byte
	var seen []event
	_, err = pgx.ForEachRow(rows, []any{&aggregate, &kind, &id, &payload}, func() error {
		seen = append(seen, event{defaultPrefix + aggregate, kind})
		checkPayload(t, schemas, kind, id, payload)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(documentedEvents(t), distinct(seen)); diff != "" {
		t.Errorf("asyncapi.yaml (-), outbox (+):\n%s", diff)
	}
}

func TestRecordsOnTheTopicsAreAsDescribed(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.happen(t)
	prefix, brokers := testenv.TopicPrefix(t), testenv.Brokers(t)
	var topics, aggregates []string
	for _, e := range documentedEvents(t) {
		aggregate := strings.TrimPrefix(e.Topic, defaultPrefix)
		topics, aggregates = append(topics, prefix+aggregate), append(aggregates, aggregate)
	}
	kafka := kafka.Producer{Brokers: brokers, TopicPrefix: prefix, Topics: slices.Compact(aggregates), Source: "/oncepay"}
	relay := relay.Relay{DB: s.db.Pool(t, "relay"), Open: kafka.Open, Name: "contract", Log: slog.New(slog.DiscardHandler)}
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	records := consume(ctx, t, brokers, topics, s.events(t))
	schemas := payloadSchemas(t)
	headers := at(t, read(t, "asyncapi.yaml"), "components", "schemas", "EventHeaders")
	closeObject(headers)
	headers["required"] = append(headers["required"].([]any), "ce_tenantid") // of new events
	described := compile(t, headers)
	var seen []event
	for _, r := range records {
		h := document{}
		for _, header := range r.Headers {
			h[header.Key] = string(header.Value)
		}
		if err := described.Validate(h); err != nil {
			t.Errorf("headers %v: %v", h, err)
		}
		kind, _ := h["ce_type"].(string)
		seen = append(seen, event{defaultPrefix + strings.TrimPrefix(r.Topic, prefix), kind})
		if string(r.Key) != h["ce_subject"] {
			t.Errorf("key %s, subject %s", r.Key, h["ce_subject"])
		}
		checkPayload(t, schemas, kind, string(r.Key), r.Value)
	}
	if diff := cmp.Diff(documentedEvents(t), distinct(seen)); diff != "" {
		t.Errorf("asyncapi.yaml (-), topics (+):\n%s", diff)
	}
}

// events is how many the outbox has.
func (s *service) events(t *testing.T) (n int) {
	t.Helper()
	if err := s.owner.QueryRow(t.Context(), `SELECT count(*) FROM outbox_events`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// consume waits for the topics, compares their partitions with the specification, and reads n records.
func consume(ctx context.Context, t *testing.T, brokers, topics []string, n int) (records []*kgo.Record) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.MetadataMinAge(50*time.Millisecond), kgo.UnknownTopicRetries(-1))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for len(records) < n {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d of %d records came", len(records), n)
		}
		records = append(records, fetches.Records()...)
	}
	made, err := kadm.NewClient(client).ListTopics(ctx, topics...)
	if err != nil {
		t.Fatal(err)
	}
	for name, channel := range at(t, read(t, "asyncapi.yaml"), "channels") {
		want := at(t, channel.(document), "bindings", "kafka")["partitions"]
		for _, topic := range made.Sorted() {
			if strings.HasSuffix(topic.Topic, "."+name) && len(topic.Partitions) != want {
				t.Errorf("%s has %d partitions, described are %v", topic.Topic, len(topic.Partitions), want)
			}
		}
	}
	return records
}

func checkPayload(t *testing.T, schemas map[string]*jsonschema.Schema, kind, id string, payload []byte) {
	t.Helper()
	schema := schemas[kind]
	if schema == nil {
		t.Errorf("no schema for %s", kind)
		return
	}
	v := instance(t, payload)
	if err := schema.Validate(v); err != nil {
		t.Errorf("%s %s: %v", kind, payload, err)
	}
	subject := "id"
	if strings.HasPrefix(kind, "refund.") {
		subject = "payment_id"
	}
	if v.(document)[subject] != id {
		t.Errorf("%s of %s has the payload %s", kind, id, payload)
	}
}

// documentedEvents are all of asyncapi.yaml, in order.
func documentedEvents(t *testing.T) (es []event) {
	t.Helper()
	d := read(t, "asyncapi.yaml")
	for _, channel := range at(t, d, "channels") {
		address := channel.(document)["address"].(string)
		for name := range at(t, channel.(document), "messages") {
			es = append(es, event{address, name})
		}
	}
	return distinct(es)
}

func distinct(es []event) []event {
	slices.SortFunc(es, func(a, b event) int { return strings.Compare(a.Topic+" "+a.Type, b.Topic+" "+b.Type) })
	return slices.Compact(es)
}

// sinceAuthorizations are members that old events on the topics lack, so that no schema requires them. Ours have them.
var sinceAuthorizations = []string{"captured_minor", "refunded_minor", "version", "held_minor", "available_minor"}

// payloadSchemas has the closed schema of each message type, from the file that asyncapi.yaml refers to.
func payloadSchemas(t *testing.T) map[string]*jsonschema.Schema {
	t.Helper()
	schemas := map[string]*jsonschema.Schema{}
	for name, m := range at(t, read(t, "asyncapi.yaml"), "components", "messages") {
		file := at(t, m.(document), "payload", "schema")["$ref"].(string)
		if file != "events/"+name+".schema.json" {
			t.Errorf("%s has the schema %s", name, file)
		}
		schema := read(t, file)
		closeObject(schema)
		for _, member := range sinceAuthorizations {
			required := schema["required"].([]any)
			if at(t, schema, "properties")[member] != nil && !slices.Contains(required, any(member)) {
				schema["required"] = append(required, member)
			}
		}
		schemas[name] = compile(t, schema)
	}
	return schemas
}

func TestTheEventDocumentsAgreeWithEachOther(t *testing.T) {
	t.Parallel()
	d := read(t, "asyncapi.yaml")
	if d["asyncapi"] != "3.0.0" {
		t.Errorf("asyncapi is %v", d["asyncapi"])
	}
	schemas := payloadSchemas(t)
	headers := at(t, d, "components", "schemas", "EventHeaders")
	var types []string
	for _, e := range documentedEvents(t) {
		types = append(types, e.Type)
		message := at(t, d, "components", "messages", e.Type)
		if message["name"] != e.Type {
			t.Errorf("%s is named %v", e.Type, message["name"])
		}
		for _, example := range read(t, "events/"+e.Type+".schema.json")["examples"].([]any) {
			if err := schemas[e.Type].Validate(instance(t, encode(t, example))); err != nil {
				t.Errorf("example of %s: %v", e.Type, err)
			}
		}
		examples, _ := message["examples"].([]any)
		for _, example := range examples {
			if err := schemas[e.Type].Validate(instance(t, encode(t, example.(document)["payload"]))); err != nil {
				t.Errorf("example of %s: %v", e.Type, err)
			}
			if err := compile(t, headers).Validate(instance(t, encode(t, example.(document)["headers"]))); err != nil {
				t.Errorf("example of %s: %v", e.Type, err)
			}
		}
	}
	var described []string
	for _, kind := range at(t, headers, "properties", "ce_type")["enum"].([]any) {
		described = append(described, kind.(string))
	}
	slices.Sort(types)
	slices.Sort(described)
	if diff := cmp.Diff(types, described); diff != "" {
		t.Errorf("messages (-), ce_type (+):\n%s", diff)
	}
	files, err := api.Files.ReadDir("events")
	if err != nil || len(files) != len(types) {
		t.Errorf("%d schemas for %d types, %v", len(files), len(types), err)
	}
	for name, channel := range at(t, d, "channels") {
		c := channel.(document)
		if c["address"] != defaultPrefix+name || at(t, c, "bindings", "kafka")["topic"] != c["address"] {
			t.Errorf("channel %s has the address %v and the topic %v", name, c["address"], at(t, c, "bindings", "kafka")["topic"])
		}
	}
}
