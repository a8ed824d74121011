package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// letter makes a letter of a message, as it was received.
func (m *message) letter(reason string, tries int) letter {
	l := letter{eventID: m.event.ID, event: m.event, err: m.err, reason: reason, tries: tries}
	for _, h := range m.record.Headers {
		l.headers = append(l.headers, []byte(h.Key), h.Value)
	}

	// Never by a ce_id it may have: the valid event under that id, sent later, must not be
	// mistaken for this record.
	if m.err != nil {
		l.eventID = contentID(m.event, l.headers)
	}

	return l
}

// contentID returns an id for a record without one: a UUIDv8 of its position and contents.
func contentID(e Event, headers [][]byte) uuid.UUID {
	hash := sha256.New()
	part := func(b []byte) {
		// The length keeps two different lists of parts from hashing alike.
		hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
		hash.Write(b)
	}

	part(fmt.Appendf(nil, "%s/%d/%d", e.Topic, e.Partition, e.Offset))
	part(e.Key)
	part(e.Payload)
	for _, h := range headers {
		part(h)
	}

	id := uuid.UUID(hash.Sum(nil)[:16])
	// Version 8, variant 10.
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	return id
}

// reread parses a stored letter again: this program may understand more than its predecessor.
func reread(l letter) letter {
	r := kgo.Record{
		Topic: l.event.Topic, Partition: l.event.Partition, Offset: l.event.Offset,
		Key: l.event.Key, Value: l.event.Payload,
	}
	for i := 0; i+1 < len(l.headers); i += 2 {
		r.Headers = append(r.Headers,
			kgo.RecordHeader{Key: string(l.headers[i]), Value: l.headers[i+1]})
	}

	m := newMessage(&r)
	l.event, l.err = m.event, m.err
	return l
}

// longest returns how long a record may stay in the topics, by their settings. It returns an error
// if that is unknown or unlimited.
func (m *member) longest(ctx context.Context) (longest time.Duration, err error) {
	configs, err := kadm.NewClient(m.client).DescribeTopicConfigs(ctx, m.topics...)
	if err != nil {
		return 0, fmt.Errorf("ask for the topics' retention: %w", err)
	}

	for _, topic := range configs {
		keeps, err := keeps(topic)
		if err != nil {
			return 0, fmt.Errorf("topic %s: %w", topic.Name, err)
		}
		longest = max(longest, keeps)
	}

	return longest, nil
}

var errUnlimited = errors.New("keeps its records for all time")

// keeps returns how long a topic may keep a record.
func keeps(topic kadm.ResourceConfig) (time.Duration, error) {
	if topic.Err != nil {
		return 0, fmt.Errorf("ask for its retention: %w", topic.Err)
	}

	settings := map[string]string{}
	for _, c := range topic.Configs {
		settings[c.Key] = c.MaybeValue()
	}

	retention, err := strconv.ParseInt(settings["retention.ms"], 10, 64)
	segment, err2 := strconv.ParseInt(settings["segment.ms"], 10, 64)
	switch {
	case err != nil || err2 != nil:
		return 0, fmt.Errorf("it does not say its retention (retention.ms %q, segment.ms %q)",
			settings["retention.ms"], settings["segment.ms"])
	case retention < 0, !strings.Contains(settings["cleanup.policy"], "delete"):
		return 0, errUnlimited
	}

	// Kafka deletes whole segments once their last record is old enough; the first may be older by
	// as much time as a segment spans. The century keeps the sum within a Duration.
	const century = 100 * 365 * 24 * time.Hour
	return time.Duration(min(retention, century.Milliseconds())+min(segment, century.Milliseconds())) *
		time.Millisecond, nil
}
