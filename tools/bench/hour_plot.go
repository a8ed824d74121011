package main

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

const (
	plotWidth, plotHeight = 900, 220 // of one panel's field
	plotLeft, plotTop     = 70, 40
	plotGap               = 70
)

const plotStyle = `<style>
text{font:13px ui-sans-serif,system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;fill:#1f2328}
.title{font-weight:600}.small{fill:#59636e;font-size:12px}.end{text-anchor:end}.middle{text-anchor:middle}
.grid{stroke:#d1d9e0}.one{stroke:#0969da;fill:none;stroke-width:2}.two{stroke:#bc4c00;fill:none;stroke-width:2}
.ones{fill:#0969da}.twos{fill:#bc4c00}.frozen{fill:#bc4c00;opacity:.12}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}.grid{stroke:#3d444d}
.one{stroke:#4493f8}.two{stroke:#f0883e}.ones{fill:#4493f8}.twos{fill:#f0883e}.frozen{fill:#f0883e}}
</style>`

// line is one curve of a panel.
type line struct {
	name, class string
	of          func(minute) float64
}

// plot draws the minutes as SVG: latencies above, the log below. Minutes in which autovacuum worked
// to prevent wraparound are shaded.
func plot(minutes []minute) []byte {
	var b bytes.Buffer
	height := 2*plotHeight + plotTop + plotGap + 40
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-labelledby="t">`+"\n",
		plotLeft+plotWidth+20, height)
	fmt.Fprintf(&b, `<title id="t">Latency and write-ahead log of a payment, by minute</title>`+"\n%s\n", plotStyle)

	panel(&b, plotTop, "latency, ms", decades, minutes,
		line{"p99", "one", func(m minute) float64 { return m.P99 }},
		line{"p50", "two", func(m minute) float64 { return m.P50 }})
	panel(&b, plotTop+plotHeight+plotGap, "write-ahead log of a payment, kB", linear, minutes,
		line{"", "one", func(m minute) float64 { return m.WAL / 1000 }})
	fmt.Fprintf(&b, `<text class="small middle" x="%d" y="%d">minutes; shaded: vacuum to prevent wraparound</text>`+
		"\n</svg>\n", plotLeft+plotWidth/2, height-8)
	return b.Bytes()
}

// panel draws curves over the minutes.
func panel(b *bytes.Buffer, top int, title string, scale func([]float64) axis, minutes []minute, lines ...line) {
	var values []float64
	for _, m := range minutes {
		for _, l := range lines {
			values = append(values, l.of(m))
		}
	}
	axis := scale(values)
	width := float64(plotWidth) / float64(len(minutes))
	y := func(v float64) float64 { return float64(top) + plotHeight*(1-axis.at(v)) }

	fmt.Fprintf(b, `<text class="title" x="%d" y="%d">%s</text>`+"\n", plotLeft, top-14, title)
	for i, m := range minutes {
		if len(m.Frozen) > 0 {
			fmt.Fprintf(b, `<rect class="frozen" x="%.1f" y="%d" width="%.1f" height="%d"/>`+"\n",
				plotLeft+float64(i)*width, top, width, plotHeight)
		}
	}
	for _, v := range axis.ticks {
		fmt.Fprintf(b, `<path class="grid" d="M%d %.1fh%d"/><text class="small end" x="%d" y="%.1f">%s</text>`+"\n",
			plotLeft, y(v), plotWidth, plotLeft-8, y(v)+4, strconv.FormatFloat(math.Round(v*1e4)/1e4, 'f', -1, 64))
	}
	for i := 0; i <= len(minutes); i += max(1, len(minutes)/6) {
		fmt.Fprintf(b, `<text class="small middle" x="%.1f" y="%d">%d</text>`+"\n",
			plotLeft+float64(i)*width, top+plotHeight+18, i)
	}

	for i, l := range lines {
		points := make([]string, len(minutes))
		for j, m := range minutes {
			points[j] = fmt.Sprintf("%.1f,%.1f", plotLeft+(float64(j)+.5)*width, y(l.of(m)))
		}
		fmt.Fprintf(b, `<polyline class="%s" points="%s"/>`+"\n", l.class, strings.Join(points, " "))
		fmt.Fprintf(b, `<text class="%ss end" x="%d" y="%d">%s</text>`+"\n", l.class,
			plotLeft+plotWidth-90*i, top-14, l.name)
	}
}

// axis says where a value is, from 0 at the bottom to 1 at the top.
type axis struct {
	at    func(float64) float64
	ticks []float64
}

// linear goes from zero to a round number.
func linear(values []float64) (a axis) {
	highest := slices.Max(values)
	step := niceStep(highest / 4)
	highest = math.Max(step, math.Ceil(highest/step)*step)
	for n := range int(math.Round(highest/step)) + 1 {
		a.ticks = append(a.ticks, float64(n)*step)
	}
	a.at = func(v float64) float64 { return v / highest }
	return a
}

// decades goes from one power of ten to another: a minute that stands still hides no other.
func decades(values []float64) (a axis) {
	const least = 0.01
	lowest := math.Floor(math.Log10(math.Max(least, slices.Min(values))))
	highest := math.Max(lowest+1, math.Ceil(math.Log10(math.Max(least, slices.Max(values)))))
	for n := lowest; n <= highest; n++ {
		a.ticks = append(a.ticks, math.Pow(10, n))
	}
	a.at = func(v float64) float64 {
		return (math.Log10(math.Max(v, math.Pow(10, lowest))) - lowest) / (highest - lowest)
	}
	return a
}

// niceStep is 1, 2 or 5 times a power of ten, and not below v.
func niceStep(v float64) float64 {
	if v <= 0 {
		return 1
	}

	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, of := range []float64{1, 2, 5} {
		if of*power >= v {
			return of * power
		}
	}
	return 10 * power
}
