package relay

import "github.com/google/uuid"

// suspicion is what a relay remembers from one term to the next about a batch of which something was refused. Brokers refuse records
// in bundles and do not say which of them is to blame. So the next term begins with one event, then two, four and so on, and
// what is refused alone is to blame.
type suspicion struct {
	left  int // events of the refused batch that have not gone through since
	ahead []gone
}

// gone is an event that is on the topic although one before it was refused.
type gone struct {
	aggregate aggregate
	id        int64
	event     uuid.UUID
}

// limit returns how many events to begin with.
func (s *suspicion) limit(most int) int {
	if s.left > 0 {
		return 1
	}
	return most
}

// raise remembers a batch, and which of its places were taken although one before them was refused.
func (s *suspicion) raise(sent []Message, ahead []int) {
	s.left, s.ahead = len(sent), nil
	for _, i := range ahead {
		s.ahead = append(s.ahead, gone{sent[i].aggregate(), sent[i].ID, sent[i].EventID})
	}
}

// clear notes that so many events went through.
func (s *suspicion) clear(events int) {
	if s.left -= events; s.left <= 0 {
		s.left, s.ahead = 0, nil
	}
}

// verdict says what is known of an event that was refused alone.
func (s *suspicion) verdict(m *Message, r *RefusedError) *refusal {
	v := &refusal{id: m.ID, reason: r.Err.Error(), wentAhead: []uuid.UUID{}}
	for _, g := range s.ahead {
		if g.aggregate == m.aggregate() && g.id > m.ID {
			v.wentAhead = append(v.wentAhead, g.event)
		}
	}
	s.left, s.ahead = 0, nil
	return v
}
