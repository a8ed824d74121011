package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// show writes v as JSON, or else the output of text in aligned columns. It returns an error unless
// all of it was written.
func (c *call) show(f *flags, v any, text func(io.Writer)) error {
	if f.asJSON {
		encoder := json.NewEncoder(c.stdout)
		encoder.SetIndent("", "  ")
		// Leave <, > and & as they are: this is not for browsers.
		encoder.SetEscapeHTML(false)
		return encoder.Encode(v)
	}

	var table bytes.Buffer // text does not check errors
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	text(w)
	if err := w.Flush(); err != nil {
		return err
	}

	_, err := table.WriteTo(c.stdout)
	return err
}

// row writes one line of a table. A nil time is a hyphen.
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

// printable replaces the characters that would move the terminal's cursor or turn the direction of
// its text (U+202E). Names and descriptions may contain them.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.In(r, unicode.Cc, unicode.Cf) {
			return '\uFFFD'
		}
		return r
	}, s)
}
