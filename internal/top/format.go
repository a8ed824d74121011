package top

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// none is what is shown for what is not known.
const none = "–"

// Count is a number with its thousands apart.
func (f Figure) Count() string { return f.text(func(v float64) string { return thousands(v) }) }

// Rate is a number a second.
func (f Figure) Rate() string {
	return f.text(func(v float64) string {
		switch {
		case v == 0:
			return "0/s"
		case v < .1:
			return "<0.1/s"
		case v < 9.95:
			return strconv.FormatFloat(v, 'f', 1, 64) + "/s"
		}
		return thousands(v) + "/s"
	})
}

// Mean is an average, with a decimal where it is small.
func (f Figure) Mean() string {
	return f.text(func(v float64) string {
		if v < 99.95 {
			return strconv.FormatFloat(v, 'f', 1, 64)
		}
		return thousands(v)
	})
}

// Latency is a short time, to two digits.
func (f Figure) Latency() string {
	return f.text(func(v float64) string {
		switch ms := v * 1000; {
		case ms < .095:
			return strconv.FormatFloat(ms*1000, 'f', 0, 64) + " µs"
		case ms < 9.95:
			return strconv.FormatFloat(ms, 'f', 1, 64) + " ms"
		case ms < 999.5:
			return strconv.FormatFloat(ms, 'f', 0, 64) + " ms"
		case v < 9.95:
			return strconv.FormatFloat(v, 'f', 1, 64) + " s"
		}
		return f.Age()
	})
}

// Age is a time as people say it, in two units at most.
func (f Figure) Age() string {
	return f.text(func(v float64) string {
		if v >= .05 && v < 9.95 {
			return strconv.FormatFloat(v, 'f', 1, 64) + " s"
		}

		d := time.Duration(min(v, maxAge) * float64(time.Second)).Round(time.Second)
		switch {
		case d < time.Minute:
			return strconv.Itoa(int(d.Seconds())) + " s"
		case d < time.Hour:
			return units(d, time.Minute, "m", time.Second, "s")
		case d < 24*time.Hour:
			return units(d, time.Hour, "h", time.Minute, "m")
		}
		return units(d, 24*time.Hour, "d", time.Hour, "h")
	})
}

// maxAge is what a Duration can hold, and no age reaches.
const maxAge = 1e9

func units(d, large time.Duration, l string, small time.Duration, s string) string {
	text := strconv.Itoa(int(d/large)) + l
	if rest := d % large / small; rest > 0 {
		text += " " + strconv.Itoa(int(rest)) + s
	}
	return text
}

func (f Figure) text(known func(float64) string) string {
	if v := float64(f); f.Known() && !math.IsInf(v, 0) {
		return known(v)
	}
	return none
}

func thousands(v float64) string {
	digits := strconv.FormatFloat(math.Abs(v), 'f', 0, 64)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	if v <= -.5 {
		return "-" + digits
	}
	return strings.TrimPrefix(digits, "-")
}
