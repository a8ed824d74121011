package relay

import "github.com/google/uuid"

// isolation finds the bad event after a batch failed. Brokers refuse records in bundles and do not
// say which one is bad, so the next term begins with one event, then two, four and so on: an event
// refused on its own is the bad one. It outlives the term.
type isolation struct {
	left  int       // events of the failed batch that have not been sent since
	ahead []Message // see BatchError.Ahead; without their bytes
}

// limit returns how many events a term begins with.
func (s *isolation) limit(most int) int {
	if s.left > 0 {
		return 1
	}
	return most
}

// begin remembers a batch that failed, and which of its events were taken although one before was
// refused.
func (s *isolation) begin(sent []Message, ahead []int) {
	s.left, s.ahead = len(sent), nil
	for _, i := range ahead {
		s.ahead = append(s.ahead, sent[i])
	}
}

// succeeded notes that so many events were sent.
func (s *isolation) succeeded(events int) {
	if s.left -= events; s.left <= 0 {
		*s = isolation{}
	}
}

// found ends the search: m was refused on its own. It returns the later events of its aggregate that
// are on the topic already.
func (s *isolation) found(m *Message) []uuid.UUID {
	wentAhead := []uuid.UUID{}
	for _, a := range s.ahead {
		if a.aggregate() == m.aggregate() && a.ID > m.ID {
			wentAhead = append(wentAhead, a.EventID)
		}
	}

	*s = isolation{}
	return wentAhead
}
