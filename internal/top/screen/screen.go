// Package screen draws the figures of internal/top as one screen of text. It knows neither terminal
// nor keys, see cmd/oncepay.
package screen

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/oncepay/oncepay/internal/top"
)

// View is what there is to draw, and where.
type View struct {
	Figures top.Figures
	Trend   *top.Trend // nil: none is drawn
	Every   time.Duration

	Width  int
	Height int  // 0: as many lines as it takes, and no line of keys
	Colors bool // as escape sequences
	Paused bool
}

// Smallest is the width and height that everything fits into.
const (
	SmallestWidth  = 80
	SmallestHeight = 24
)

// drawing is a view while it is drawn.
type drawing struct {
	View
	theme
	lines []string
}

// Draw returns the screen, without a newline at its end.
func Draw(v View) string {
	d := drawing{View: v, theme: plain}
	if v.Colors {
		d.theme = colored
	}
	if d.Width < 1 {
		d.Width = SmallestWidth
	}

	d.title()
	d.sections()
	d.wrong()

	if v.Height == 0 {
		return strings.Join(d.lines, "\n")
	}
	d.lines = d.lines[:min(len(d.lines), v.Height-1)]
	for len(d.lines) < v.Height-1 {
		d.put(line{})
	}
	d.keys()
	return strings.Join(d.lines, "\n")
}

func (d *drawing) put(l line) { d.lines = append(d.lines, strings.TrimRight(l.text, " ")) }

func (d *drawing) title() {
	at := "no answer yet"
	if !d.Figures.At.IsZero() {
		at = d.Figures.At.UTC().Format("2006-01-02 15:04:05 UTC")
	}
	if d.Paused {
		at = "PAUSED at " + at
	}

	l := line{}.add("oncepay top", d.strong).add(fmt.Sprintf("   every %s", d.Every), d.label)
	d.put(l.to(d.Width-utf8.RuneCountInString(at)).add(at, d.label))
}

// roomy reports whether there is room for n lines beyond those of the smallest screen, which has room
// for three symptoms. More of them come before trends and gaps.
func (d *drawing) roomy(n int) bool {
	return d.Height >= SmallestHeight+n+max(0, len(d.Figures.Wrong)-3)
}

// gap separates sections where there is room.
func (d *drawing) gap() {
	if d.Height == 0 || d.roomy(6) {
		d.put(line{})
	}
}

// sections are the chain, in the order in which a payment passes through it.
func (d *drawing) sections() {
	f := d.Figures

	d.put(line{})
	d.head(top.API, d.apiState())
	d.apiRows(f.API)
	d.trend()

	d.gap()
	d.head("outbox", d.cursor(f.Outbox))
	d.outboxRows(f.Outbox)

	d.gap()
	d.head(top.Relay, d.relayState(f.Relay))
	d.relayRows(f.Relay)

	d.gap()
	d.head(top.Consumer, d.programState(top.Consumer))
	d.consumerRows(f.Consumer)

	d.gap()
	d.head(top.Worker, d.programState(top.Worker))
	d.workerRows(f.Worker)
}

// trend draws two lines, taller ones where there is room.
func (d *drawing) trend() {
	if d.Trend == nil || !d.roomy(0) {
		return
	}

	height := 1
	if d.roomy(10) {
		height = 3
		d.put(line{})
	}
	if d.roomy(18) {
		height = 5
	}
	width := d.Width - gutter - scale
	d.spark("new/s", d.Trend.Rates(width), top.Figure.Rate, width, height)
	if height > 1 {
		d.put(line{})
	}
	d.spark("p99", d.Trend.P99s(width), top.Figure.Latency, width, height)
}

// scale is the width of what a trend's maximum takes, at its right.
const scale = 14

func (d *drawing) spark(name string, values []top.Figure, text func(top.Figure) string, width, height int) {
	for i, row := range spark(values, width, height) {
		l := line{}
		if i == height-1 {
			l = l.add(name, d.label)
		}
		l = l.to(gutter).add(row, d.good)
		if i == 0 {
			l = l.add("  max "+text(highest(values)), d.label)
		}
		d.put(l)
	}
}

func (d *drawing) keys() {
	l := line{}
	for _, k := range [][2]string{{"q", "quit"}, {"space", "pause"}, {"?", "help"}} {
		l = l.add(k[0], d.strong).add(" "+k[1]+"   ", d.label)
	}
	d.put(l)
}
