package top

import (
	"io"
	"time"

	"github.com/oncepay/oncepay/internal/scrape"
)

// Keep takes a text of metrics as what an instance showed at a time.
func (w *Watch) Keep(t Target, at time.Time, text io.Reader) error {
	families, err := scrape.Parse(text)
	w.keep(t, reading{at: at, err: err, families: families})
	return err
}

// Lost takes it that an instance could not be reached at a time.
func (w *Watch) Lost(t Target, at time.Time, problem error) {
	w.keep(t, reading{at: at, err: problem})
}

// Quantile returns a quantile of the only histogram in a text of metrics.
func Quantile(q float64, text io.Reader) (Figure, error) {
	families, err := scrape.Parse(text)
	for _, f := range families {
		return Figure(newHistogram(f.GetMetric()[0].GetHistogram()).quantile(q)), err
	}
	return Unknown, err
}

// Headings are all that a Wrong may name.
var Headings = []string{
	readSymptoms, readGone, readFail, readBooks, readStuck, readTopic, readCopies, readMore, readLetters, readOpen, readSnapshot, readStall, readHolds, readPSP, readSequence,
	readRetention,
}
