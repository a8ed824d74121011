package relay

import (
	"cmp"
	"slices"
	"time"
)

// Tally counts the events of a span. What is not in Topics is not sent.
type Tally struct {
	Topics  []TopicTally `json:"topics"`
	Unsent  int64        `json:"left_to_the_relay"` // it has not sent them yet
	Parked  int64        `json:"parked"`            // they wait behind an event that the broker refused
	Skipped int64        `json:"skipped"`           // an operator gave them up
}

// TopicTally counts those of one topic.
type TopicTally struct {
	Topic    string    `json:"topic"` // the aggregate type
	Events   int64     `json:"events"`
	Bytes    int64     `json:"bytes"` // payloads and headers
	FirstID  int64     `json:"first_id"`
	LastID   int64     `json:"last_id"`
	Earliest time.Time `json:"earliest"`
	Latest   time.Time `json:"latest"`
}

// Events returns how many are sent.
func (t Tally) Events() (n int64) {
	for _, topic := range t.Topics {
		n += topic.Events
	}
	return n
}

// Bytes returns how large they are together.
func (t Tally) Bytes() (n int64) {
	for _, topic := range t.Topics {
		n += topic.Bytes
	}
	return n
}

// count adds the events of one topic that have one state.
func (t *Tally) count(state string, c TopicTally) {
	switch state {
	case "sent":
		t.add(Tally{Topics: []TopicTally{c}})
	case "unsent":
		t.Unsent += c.Events
	case "parked":
		t.Parked += c.Events
	case "skipped":
		t.Skipped += c.Events
	}
}

func (t *Tally) add(more Tally) {
	t.Unsent += more.Unsent
	t.Parked += more.Parked
	t.Skipped += more.Skipped

	for _, c := range more.Topics {
		i, known := slices.BinarySearchFunc(t.Topics, c.Topic, func(a TopicTally, topic string) int {
			return cmp.Compare(a.Topic, topic)
		})
		if !known {
			t.Topics = slices.Insert(t.Topics, i, c)
			continue
		}

		topic := &t.Topics[i]
		topic.Events += c.Events
		topic.Bytes += c.Bytes
		topic.FirstID, topic.LastID = min(topic.FirstID, c.FirstID), max(topic.LastID, c.LastID)
		if c.Earliest.Before(topic.Earliest) {
			topic.Earliest = c.Earliest
		}
		if c.Latest.After(topic.Latest) {
			topic.Latest = c.Latest
		}
	}
}
