package main

import (
	"errors"
	"fmt"
)

// tally counts, event by event in the order of the topic, what should not be there and what should. Events are numbered from 0, and those of one
// key were committed in the order of their numbers.
type tally struct {
	seen []bool
	last map[string]placed

	distinct, duplicates, outOfOrder, strange int
	outside                                   int // records that came outside of a Kafka transaction
}

// placed is the newest event of a key, and where it stood.
type placed struct {
	number    int
	partition int32
}

func newTally(events int) *tally {
	return &tally{seen: make([]bool, events), last: map[string]placed{}}
}

// record counts one record. A repetition counts as that alone, wherever it stands: consumers throw it away by its id.
func (t *tally) record(key string, number int, partition int32) {
	switch {
	case number < 0 || number >= len(t.seen):
		t.strange++
		return
	case t.seen[number]:
		t.duplicates++
		return
	}
	t.seen[number] = true
	t.distinct++
	// There is no order between partitions, so a key in two of them has none either.
	before, known := t.last[key]
	if known && (number < before.number || partition != before.partition) {
		t.outOfOrder++
	}
	if !known || number > before.number {
		t.last[key] = placed{number, partition}
	}
}

func (t *tally) missing() int { return len(t.seen) - t.distinct }

// err says why a figure measured on this topic is no result. Order is promised by our relay alone, and duplicates are counted, not forbidden.
func (t *tally) err(ordered bool) error {
	switch {
	case t.missing() > 0:
		return fmt.Errorf("no result: %d of %d events are missing in the topic", t.missing(), len(t.seen))
	case t.strange > 0:
		return fmt.Errorf("no result: %d records in the topic that nobody wrote", t.strange)
	case ordered && t.outOfOrder > 0:
		return fmt.Errorf("no result: %d of %d events are out of order within their aggregate", t.outOfOrder, len(t.seen))
	}
	return nil
}

// errNoTransaction: what was to be sent exactly once was sent as ever.
var errNoTransaction = errors.New("no result: RELAY_DELIVERY=exactly-once was asked for, and records came outside of Kafka transactions")
