package inbox

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// headers returns a record's headers as a letter keeps them: name, value, name, value …
func (m *message) headers() [][]byte {
	headers := [][]byte{}
	for _, h := range m.record.Headers {
		headers = append(headers, []byte(h.Key), filled(h.Value))
	}
	return headers
}

// letterID returns the id under which a message is stored as a letter. A record that is no event
// has a UUIDv8 of its position and contents, never a ce_id it may have: the valid event under that
// id, sent later, must not be mistaken for this record.
func (m *message) letterID() uuid.UUID {
	if m.err == nil {
		return m.event.ID
	}

	e := m.event
	contents := fmt.Appendf(nil, "%q %d %d %q %q %q",
		e.Topic, e.Partition, e.Offset, e.Key, e.Payload, m.headers())
	return uuid.NewHash(sha256.New(), uuid.Nil, contents, 8)
}

// reread reads a stored record again: this program may understand more than its predecessor.
func reread(
	topic string, partition int32, offset int64, key []byte, headers [][]byte, payload []byte,
) message {
	r := &kgo.Record{Topic: topic, Partition: partition, Offset: offset, Key: key, Value: payload}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: string(headers[i]), Value: headers[i+1]})
	}
	return newMessage(r)
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
