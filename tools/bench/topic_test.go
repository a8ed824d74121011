package main

import (
	"strings"
	"testing"
)

type counted struct{ missing, duplicates, outOfOrder, strange int }

func (t *tally) counted() counted {
	return counted{t.missing(), t.duplicates, t.outOfOrder, t.strange}
}

func TestTallyCountsEachFault(t *testing.T) {
	t.Parallel()
	type record struct {
		key       string
		number    int
		partition int32
	}
	// Two aggregates whose events alternate, on partitions of their own.
	sound := []record{{"a", 0, 1}, {"b", 1, 2}, {"a", 2, 1}, {"b", 3, 2}, {"a", 4, 1}, {"b", 5, 2}}
	of := func(numbers ...int) (topic []record) {
		for _, n := range numbers {
			topic = append(topic, sound[n])
		}
		return topic
	}
	for name, c := range map[string]struct {
		topic []record
		want  counted
		says  string
	}{
		"sound":                               {of(0, 1, 2, 3, 4, 5), counted{}, ""},
		"partitions read one after the other": {of(1, 3, 5, 0, 2, 4), counted{}, ""},
		"one lost":                            {of(0, 1, 3, 4, 5), counted{missing: 1}, "1 of 6 events are missing"},
		"the last lost":                       {of(0, 1, 2, 3, 4), counted{missing: 1}, "1 of 6 events are missing"},
		"nothing there":                       {nil, counted{missing: 6}, "6 of 6 events are missing"},
		"one twice":                           {of(0, 1, 2, 3, 4, 5, 0), counted{duplicates: 1}, ""},
		"a batch twice":                       {of(0, 1, 2, 3, 2, 3, 4, 5), counted{duplicates: 2}, ""},
		"one overtaken":                       {of(2, 1, 0, 3, 4, 5), counted{outOfOrder: 1}, "1 of 6 events are out of order"},
		"the first comes last":                {of(2, 4, 0, 1, 3, 5), counted{outOfOrder: 1}, "1 of 6 events are out of order"},
		"two late":                            {of(4, 0, 2, 1, 3, 5), counted{outOfOrder: 2}, "2 of 6 events are out of order"},
		"an aggregate in two partitions":      {append(of(0, 1, 2, 3, 5), record{"a", 4, 7}), counted{outOfOrder: 1}, "1 of 6 events are out of order"},
		"lost and another one twice":          {of(0, 1, 0, 3, 4, 5), counted{missing: 1, duplicates: 1}, "1 of 6 events are missing"},
		"a number beyond the last":            {append(of(0, 1, 2, 3, 4, 5), record{"a", 6, 1}), counted{strange: 1}, "1 records that the benchmark did not write"},
		"no number":                           {append(of(0, 1, 2, 3, 4, 5), record{"a", -1, 1}), counted{strange: 1}, "1 records that the benchmark did not write"},
	} {
		got := newTally(len(sound))
		for _, r := range c.topic {
			got.record(r.key, r.number, r.partition)
		}
		if got.counted() != c.want {
			t.Errorf("%s: %+v, want %+v", name, got.counted(), c.want)
		}
		if err := got.err(ours.delivery); (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

func TestTallyAsksOurRelayForOrder(t *testing.T) {
	t.Parallel()
	swapped := newTally(2)
	swapped.record("a", 1, 0)
	swapped.record("a", 0, 0)
	if swapped.err(ours.delivery) == nil || swapped.err(tutorial.delivery) != nil {
		t.Errorf("ours: %v, the tutorial's: %v", swapped.err(ours.delivery), swapped.err(tutorial.delivery))
	}
	if lost := newTally(1); lost.err(tutorial.delivery) == nil {
		t.Error("a lost event is a result for the tutorial relay")
	}
}
