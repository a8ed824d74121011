package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// show writes v as JSON, or what text makes of it in aligned columns.
func (c *call) show(f *flags, v any, text func(io.Writer)) error {
	if f.asJSON {
		encoder := json.NewEncoder(c.stdout)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return encoder.Encode(v)
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	text(w)
	return w.Flush()
}

// row writes one line of a table. A time that is not there yet is a hyphen.
func row(w io.Writer, cells ...any) {
	texts := make([]string, len(cells))
	for i, cell := range cells {
		switch v := cell.(type) {
		case time.Time:
			texts[i] = stamp(v)
		case *time.Time:
			texts[i] = "-"
			if v != nil {
				texts[i] = stamp(*v)
			}
		default:
			texts[i] = printable(fmt.Sprint(v))
		}
	}
	fmt.Fprintln(w, strings.Join(texts, "\t"))
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func money(minor int64, currency string) string { return fmt.Sprintf("%d %s", minor, currency) }

// printable takes out what would move the terminal's cursor: a name or a description may hold it.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '\uFFFD'
		}
		return r
	}, s)
}
