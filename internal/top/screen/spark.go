package screen

import (
	"strings"

	"github.com/oncepay/oncepay/internal/top"
)

// blocks are columns of one to eight eighths.
var blocks = []rune("▁▂▃▄▅▆▇█")

// spark draws values as columns of several lines, the newest at the right edge, on a scale from 0 to
// their maximum. An unknown value is a gap.
func spark(values []top.Figure, width, height int) []string {
	values = values[len(values)-min(max(width, 0), len(values)):]
	top := highest(values)

	rows := make([]string, height)
	for i := range rows {
		var row strings.Builder
		row.WriteString(spaces(width - len(values)))
		for _, v := range values {
			row.WriteRune(block(v, float64(top), height, height-1-i))
		}
		rows[i] = row.String()
	}
	return rows
}

// block returns what the column of a value shows in a line, counted from below.
func block(v top.Figure, scale float64, height, above int) rune {
	if !v.Known() {
		return ' '
	}

	eighths := 1 // the least: 0 is drawn, other than a gap
	if scale > 0 {
		eighths = max(1, int(float64(v)/scale*float64(8*height)+.5))
	}
	switch here := eighths - 8*above; {
	case here <= 0:
		return ' '
	case here >= 8:
		return blocks[7]
	default:
		return blocks[here-1]
	}
}

// highest returns the largest known value, or an unknown one.
func highest(values []top.Figure) top.Figure {
	found := top.Unknown
	for _, v := range values {
		if v.Known() && !(found >= v) {
			found = v
		}
	}
	return found
}
