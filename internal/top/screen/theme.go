package screen

// theme is what colors mean. None says anything that a word or a sign does not say as well.
type theme struct{ label, strong, good, warn, bad func(string) string }

// The terminal's own sixteen colors, which suit its background. The library that draws leaves them
// out where NO_COLOR is set.
var colored = theme{
	label: sgr("2"), strong: sgr("1"), good: sgr("32"), warn: sgr("33"), bad: sgr("1;31"),
}

var plain = theme{label: same, strong: same, good: same, warn: same, bad: same}

func sgr(code string) func(string) string {
	return func(s string) string {
		if s == "" {
			return s
		}
		return "\x1b[" + code + "m" + s + "\x1b[m"
	}
}

func same(s string) string { return s }
