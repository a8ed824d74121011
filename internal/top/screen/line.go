package screen

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// line is text with its colors, and its width without them.
type line struct {
	text  string
	width int
}

// add returns the line with s behind it, in a color. Spaces at its end have none, so that they can be
// cut off.
func (l line) add(s string, color func(string) string) line {
	seen := strings.TrimRight(s, " ")
	return line{l.text + color(seen) + s[len(seen):], l.width + utf8.RuneCountInString(s)}
}

// to returns the line with spaces up to a column.
func (l line) to(column int) line { return l.add(spaces(column-l.width), same) }

func spaces(n int) string { return strings.Repeat(" ", max(n, 0)) }

// cut shortens s to a width, with an ellipsis for what is missing.
func cut(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	if width < 1 {
		return ""
	}
	return string([]rune(s)[:width-1]) + "…"
}

// clean replaces what would move the cursor: addresses, labels and errors come from outside.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.In(r, unicode.Cc, unicode.Cf) {
			return '\uFFFD'
		}
		return r
	}, s)
}
