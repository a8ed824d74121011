package page

import (
	"fmt"
	"sync"
	"time"
)

// Kind is what a line of the timeline is about.
type Kind string

// The kinds of lines.
const (
	Action   Kind = "action"
	Fault    Kind = "fault"
	Recovery Kind = "recovery"
	Proved   Kind = "proof"
	Wrong    Kind = "wrong"
)

// line is one of the timeline.
type line struct {
	Seq     int     `json:"seq"`
	Elapsed float64 `json:"elapsed"`
	Kind    Kind    `json:"kind"`
	Text    string  `json:"text"`
}

// mostLines are kept: more than a visitor causes in an hour.
const mostLines = 1000

// Timeline keeps what has happened, for those who listen and those who come later.
type Timeline struct {
	begun time.Time

	mu    sync.Mutex
	lines []line
	last  int
	added chan struct{} // closed and replaced with each line
}

func newTimeline(begun time.Time) *Timeline {
	return &Timeline{begun: begun, added: make(chan struct{})}
}

// Add adds a line.
func (t *Timeline) Add(kind Kind, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.last++
	t.lines = append(t.lines[max(0, len(t.lines)+1-mostLines):], line{
		t.last, time.Since(t.begun).Seconds(), kind, fmt.Sprintf(format, args...),
	})
	close(t.added)
	t.added = make(chan struct{})
}

// next returns a channel that is closed when there is a further line.
func (t *Timeline) next() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.added
}

// after returns the lines after the one of that number, and a channel that is closed when there are
// more.
func (t *Timeline) after(seq int) ([]line, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()

	for i, l := range t.lines {
		if l.Seq > seq {
			return append([]line(nil), t.lines[i:]...), t.added
		}
	}
	return nil, t.added
}
