package invariant

import (
	"bytes"
	"fmt"
	"io"
	"strings"
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
	TransitionsIllegal  = "illegal transitions"
	EventsLost          = "events lost"
	EventsPhantom       = "phantom events"
	EventsChanged       = "events changed"
	EventsRepeated      = "events repeated too often"
	EventsOutOfOrder    = "events out of order"
	EffectsLost         = "effects lost"
	EffectsPhantom      = "effects without event"
	StatementsWrong     = "statements differ from ledger"
	PaymentsUnbalanced  = "unbalanced payments"
	RefundsUnbalanced   = "unbalanced refunds"
	PaymentsAstray      = "payments across tenants"
	BalancesWrong       = "wrong balances"
	HoldsWrong          = "wrong holds"
	OperationsWrong     = "operations unlike payments"
	ChargedTwice        = "charged twice"
	ChargedUnbooked     = "charged and not completed"
	BookedUncharged     = "completed and not charged"
	PSPDiffers          = "amounts unlike the PSP's"
)

// Report is what was counted.
type Report struct {
	Lines   []Line
	LeftOut []string // names of lines not counted for lack of a history, a broker or the PSP's books

	// In the tables and on the topics.
	Payments, Declined int64 // declined for lack of money
	ByCard             int64 // of Payments

	// Of Payments: those that held money first, and what ended the hold.
	Authorized, Captured, Canceled, Expired int64
	Refunds                                 int64 // those that moved money

	Events, Records int64
	PaymentEvents   int64 // of Events; the others are of accounts and other types
	Repeated        int64 // records beyond the first of their event

	// In the history.
	Exchanges, Replays, MismatchesRefused int64
	Recovered                             int64 // requests cut off whose repeat got the stored answer
}

// Line is one invariant.
type Line struct {
	Name     string
	Wrong    int64
	Of       int64    // how many were looked at; with zero, the line proves nothing
	Unit     string   // what was looked at, in the plural
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

// WriteTable writes a line for each invariant: ok, WRONG with examples below, or none if there was
// nothing to look at. The examples aside, it fits into 80 columns.
func (r Report) WriteTable(w io.Writer) error {
	var b bytes.Buffer
	const row = "%-5s  %-30s %6d  %8d %s\n"
	fmt.Fprintf(&b, "%-5s  %-30s %6s  %8s\n", "", "must never happen", "found", "among")

	for _, l := range r.Lines {
		verdict := "ok"
		switch {
		case l.Wrong > 0:
			verdict = "WRONG"
		case l.Of == 0:
			verdict = "none"
		}

		fmt.Fprintf(&b, row, verdict, l.Name, l.Wrong, l.Of, l.Unit)
		if len(l.Examples) > 0 {
			fmt.Fprintf(&b, "       %s\n", strings.Join(l.Examples, ", "))
		}
	}

	for _, name := range r.LeftOut {
		fmt.Fprintf(&b, "%-5s  %-30s not counted: no source for it\n", "-", name)
	}

	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
