package kafka

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/relay"
)

// encoder makes records of messages. The next batch reuses its memory: the client keeps no record
// after its acknowledgement, and after an error the encoder is not used again.
type encoder struct {
	values   []kgo.Record
	pointers []*kgo.Record
	headers  []kgo.RecordHeader
	bytes    []byte
}

// own are the attributes that the event's columns give. Other headers that begin with ce_ are
// extension attributes.
var own = map[string]bool{
	"ce_specversion": true, "ce_id": true, "ce_source": true, "ce_type": true, "ce_subject": true,
	"ce_time": true, "ce_sequence": true,
}

func (e *encoder) records(k Producer, batch []relay.Message) []*kgo.Record {
	e.pointers, e.headers, e.bytes = e.pointers[:0], e.headers[:0], e.bytes[:0]
	e.values = slices.Grow(e.values[:0], len(batch)) // pointers to it must stay valid

	topic := ""
	for i := range batch {
		m := &batch[i]
		if i == 0 || m.AggregateType != batch[i-1].AggregateType { // the string is made once for a run
			topic = k.TopicPrefix + m.AggregateType
		}

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
			if own[name] {
				return
			}
			typed = typed || name == "content-type"
			e.add(name, append(e.bytes, value...))
		})
		if !typed {
			e.header("content-type", "application/json")
		}

		e.values = append(e.values, kgo.Record{
			Topic: topic, Key: key, Value: m.Payload,
			Headers: e.headers[first:len(e.headers):len(e.headers)],
		})
		e.pointers = append(e.pointers, &e.values[i])
	}

	return e.pointers
}

func (e *encoder) header(name, value string) { e.add(name, append(e.bytes, value...)) }

// add takes e.bytes with a header's value appended.
func (e *encoder) add(name string, grown []byte) {
	value := grown[len(e.bytes):len(grown):len(grown)]
	e.headers = append(e.headers, kgo.RecordHeader{Key: name, Value: value})
	e.bytes = grown
}

// appendUUID appends the text of an id, which String would allocate.
func appendUUID(to []byte, id uuid.UUID) []byte {
	to = hex.AppendEncode(to, id[:4])
	for _, part := range [...][]byte{id[4:6], id[6:8], id[8:10], id[10:]} {
		to = hex.AppendEncode(append(to, '-'), part)
	}
	return to
}

// legalTopic reports whether Kafka allows a topic of this name.
func legalTopic(name string) bool {
	const chars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	legal := strings.Trim(name, chars) == "" && len(name) <= 249
	return legal && name != "" && name != "." && name != ".."
}

// eachHeader yields the members of a JSON object. A row written by hand may hold more than strings,
// which come as JSON.
func eachHeader(object []byte, yield func(name string, value []byte)) {
	var room [16][]byte
	if members, plain := plainMembers(object, room[:0]); plain {
		for i := 0; i+1 < len(members); i += 2 {
			yield(string(members[i]), members[i+1])
		}
		return
	}

	var members map[string]json.RawMessage // not any: a number keeps all its digits
	_ = json.Unmarshal(object, &members)   // it was JSON in Postgres a moment ago
	for _, name := range slices.Sorted(maps.Keys(members)) {
		var text string
		if json.Unmarshal(members[name], &text) == nil && string(members[name]) != "null" {
			yield(name, []byte(text))
			continue
		}
		var compact bytes.Buffer
		_ = json.Compact(&compact, members[name])
		yield(name, compact.Bytes())
	}
}

// plainMembers appends names and values of an object that holds only strings without escapes, as
// Postgres prints jsonb: {"a": "b", "c": "d"}. That is what Append writes, and ten times as fast as
// a decoder.
func plainMembers(object []byte, to [][]byte) (members [][]byte, plain bool) {
	if string(object) == "{}" {
		return to, true
	}
	if bytes.IndexByte(object, '\\') >= 0 {
		return nil, false
	}

	for rest, before := object, `{"`; ; {
		if len(rest) < len(before) || string(rest[:len(before)]) != before {
			return nil, false
		}
		rest = rest[len(before):]
		end := bytes.IndexByte(rest, '"')
		if end < 0 {
			return nil, false
		}
		to, rest = append(to, rest[:end]), rest[end+1:]

		switch {
		case len(to)%2 == 1:
			before = `: "`
		case string(rest) == "}":
			return to, true
		default:
			before = `, "`
		}
	}
}

// size returns how many bytes a record takes in a batch of its own, uncompressed, as franz-go
// counts them.
func size(r *kgo.Record) int {
	n := 3 + sized(len(r.Key)) + sized(len(r.Value)) + varint(len(r.Headers))
	for _, h := range r.Headers {
		n += sized(len(h.Key)) + sized(len(h.Value))
	}
	return batchOverhead + sized(n)
}

// sized returns how many bytes n bytes take with their length.
func sized(n int) int { return varint(n) + n }

func varint(n int) int {
	var room [binary.MaxVarintLen64]byte
	return binary.PutVarint(room[:], int64(n))
}
