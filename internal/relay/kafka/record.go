package kafka

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"maps"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/relay"
)

// mostNames is how many topics are remembered.
const mostNames = 1_000

// encoder makes records of messages, in memory that it takes over for the next batch: nobody holds on to a record after it
// was acknowledged, and after an error the publisher is thrown away with it.
type encoder struct {
	values   []kgo.Record
	pointers []*kgo.Record
	headers  []kgo.RecordHeader
	bytes    []byte
	topics   map[string]string // by aggregate type
}

func (e *encoder) records(k Producer, batch []relay.Message) []*kgo.Record {
	e.values, e.pointers, e.headers, e.bytes = e.values[:0], e.pointers[:0], e.headers[:0], e.bytes[:0]
	if cap(e.values) < len(batch) {
		e.values = make([]kgo.Record, 0, len(batch)) // it must not move any more
	}
	for i := range batch {
		m := &batch[i]
		first := len(e.headers)
		e.header("ce_specversion", "1.0")
		e.add("ce_id", appendUUID(e.bytes, m.EventID))
		e.header("ce_source", k.Source)
		e.header("ce_type", m.Type)
		e.header("ce_subject", m.AggregateID)
		key := e.headers[len(e.headers)-1].Value
		e.add("ce_time", m.CreatedAt.UTC().AppendFormat(e.bytes, time.RFC3339Nano))
		if m.AggregateVersion != nil {
			e.add("ce_sequence", strconv.AppendInt(e.bytes, *m.AggregateVersion, 10))
		}
		typed := false
		eachHeader(m.Headers, func(name string, value []byte) {
			if strings.HasPrefix(name, "ce_") { // those are the event's own, and there once
				return
			}
			typed = typed || name == "content-type"
			e.add(name, append(e.bytes, value...))
		})
		if !typed {
			e.header("content-type", "application/json")
		}
		e.values = append(e.values, kgo.Record{
			Topic: e.topic(k.TopicPrefix, m.AggregateType), Key: key, Value: m.Payload, Headers: e.headers[first:len(e.headers):len(e.headers)],
		})
		e.pointers = append(e.pointers, &e.values[i])
	}
	return e.pointers
}

func (e *encoder) header(name, value string) { e.add(name, append(e.bytes, value...)) }

// add takes e.bytes with a header's value behind it.
func (e *encoder) add(name string, grown []byte) {
	e.headers = append(e.headers, kgo.RecordHeader{Key: name, Value: grown[len(e.bytes):len(grown):len(grown)]})
	e.bytes = grown
}

func (e *encoder) topic(prefix, aggregateType string) string {
	topic, known := e.topics[aggregateType]
	if !known {
		if e.topics == nil || len(e.topics) == mostNames {
			e.topics = map[string]string{}
		}
		topic = prefix + aggregateType
		e.topics[aggregateType] = topic
	}
	return topic
}

// legalTopic says whether a topic may have this name: Kafka's rule.
func legalTopic(name string) bool {
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return name != "" && name != "." && name != ".." && len(name) <= 249
}

func appendUUID(to []byte, id uuid.UUID) []byte {
	to = hex.AppendEncode(to, id[:4])
	for _, part := range [...][]byte{id[4:6], id[6:8], id[8:10], id[10:]} {
		to = hex.AppendEncode(append(to, '-'), part)
	}
	return to
}

// eachHeader tells the members of a JSON object. A row that was written by hand may hold more than strings, which must not
// stop the others: they are told as JSON.
func eachHeader(object []byte, tell func(name string, value []byte)) {
	var room [16][]byte
	if members, plain := plainMembers(object, room[:0]); plain {
		for i := 0; i+1 < len(members); i += 2 {
			tell(string(members[i]), members[i+1])
		}
		return
	}
	var members map[string]json.RawMessage // not any: a number keeps all its digits
	_ = json.Unmarshal(object, &members)   // it was JSON in Postgres a moment ago
	for _, name := range slices.Sorted(maps.Keys(members)) {
		var text string
		if json.Unmarshal(members[name], &text) == nil && string(members[name]) != "null" {
			tell(name, []byte(text))
			continue
		}
		var compact bytes.Buffer
		_ = json.Compact(&compact, members[name])
		tell(name, compact.Bytes())
	}
}

// plainMembers appends names and values of an object that holds nothing but strings without escapes, in the form that Postgres
// gives to jsonb: {"a": "b", "c": "d"}. That is what Append writes, and much faster than a decoder.
func plainMembers(object []byte, to [][]byte) (members [][]byte, plain bool) {
	if string(object) == "{}" {
		return to, true
	}
	if bytes.IndexByte(object, '\\') >= 0 {
		return nil, false
	}
	for before := `{"`; ; {
		rest, is := bytes.CutPrefix(object, []byte(before))
		text, behind, ends := bytes.Cut(rest, []byte(`"`))
		if !is || !ends {
			return nil, false
		}
		to, object = append(to, text), behind
		switch {
		case len(to)%2 == 1:
			before = `: "`
		case string(object) == "}":
			return to, true
		default:
			before = `, "`
		}
	}
}

// size returns how many bytes a record takes on the wire in a batch of its own, uncompressed, as franz-go counts them.
func size(r *kgo.Record) int {
	n := 1 + 1 + 1 + sized(len(r.Key)) + sized(len(r.Value)) + varint(len(r.Headers)) // attributes, and where it stands in its batch
	for _, h := range r.Headers {
		n += sized(len(h.Key)) + sized(len(h.Value))
	}
	return batchOverhead + sized(n)
}

// sized returns how many bytes n bytes take behind their number.
func sized(n int) int { return varint(n) + n }

// varint returns how many bytes a number takes: seven bits each, and one of them all is its sign.
func varint(n int) int { return (bits.Len(uint(n)) + 1 + 6) / 7 }
