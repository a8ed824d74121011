package invariant

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// The lines of a report. doc.go explains each.
const (
	AcknowledgedMissing = "acknowledged payments missing"
	NobodyAskedFor      = "payments nobody asked for"
	AnswersChanged      = "answers changed"
	ReusedKeysAccepted  = "reused keys accepted"
	RefusedForNothing   = "keys refused for nothing"
	RepeatsUnmarked     = "repeats not marked as such"
	KeysTwice           = "keys that took effect twice"
	AnswersMissing      = "payments without their answer"
	EventsMissing       = "payments without their event"
	EventsLost          = "events lost"
	EventsPhantom       = "phantom events"
	EventsChanged       = "events changed"
	EventsRepeated      = "events repeated too often"
	EventsOutOfOrder    = "events out of order"
	EffectsLost         = "effects lost"
	EffectsPhantom      = "effects without event"
	StatementsWrong     = "statements differ from ledger"
	PaymentsUnbalanced  = "unbalanced payments"
	PaymentsAstray      = "payments across tenants"
	BalancesWrong       = "wrong balances"
)

// Report is what was counted.
type Report struct {
	Lines   []Line
	LeftOut []string // names of lines not counted for lack of a history or a broker

	// In the tables and on the topics.
	Payments, Declined, Events, Records int64
	Repeated                            int64 // records beyond the first of their event

	// In the history.
	Exchanges, Replays, MismatchesRefused int64
	Recovered                             int64 // requests cut off whose repeat got the stored answer
}

// Line is one invariant.
type Line struct {
	Name     string
	Wrong    int64
	Of       int64    // how many were looked at; with zero, the line proves nothing
	Examples []string // of what is wrong, at most three
}

const mostExamples = 3

// OK reports whether nothing was found wrong. It does not mean that anything was looked at: see
// Line.Of.
func (r Report) OK() bool { return len(r.Wrong()) == 0 }

// Wrong returns the count of each line that found something wrong, by name. It is never nil.
func (r Report) Wrong() map[string]int64 {
	wrong := map[string]int64{}
	for _, l := range r.Lines {
		if l.Wrong > 0 {
			wrong[l.Name] = l.Wrong
		}
	}

	return wrong
}

// Line returns the line with the given name, or the zero Line if it was left out.
func (r Report) Line(name string) Line {
	for _, l := range r.Lines {
		if l.Name == name {
			return l
		}
	}

	return Line{}
}

// allow takes up to most findings as expected, and drops the examples if none remain.
func (l *Line) allow(most int64) {
	l.Wrong = max(0, l.Wrong-most)

	if l.Wrong == 0 {
		l.Examples = nil
	}
}

// WriteTable writes a line for each invariant: ok, WRONG with examples, or none if there was
// nothing to look at.
func (r Report) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, l := range r.Lines {
		verdict, examples := "ok", ""
		switch {
		case l.Wrong > 0:
			verdict, examples = "WRONG", strings.Join(l.Examples, ", ")
		case l.Of == 0:
			verdict = "none"
		}

		fmt.Fprintln(t, strings.TrimRight(
			fmt.Sprintf("%s\t%s\t%d of %d\t%s", verdict, l.Name, l.Wrong, l.Of, examples), "\t"))
	}

	for _, name := range r.LeftOut {
		fmt.Fprintf(t, "-\t%s\tnot counted: no source for it\n", name)
	}

	if err := t.Flush(); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
