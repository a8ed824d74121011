package program

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

// JSON gives c, and every command below it, the flag --json, which Show obeys.
func JSON(c *cobra.Command) { c.PersistentFlags().Bool("json", false, "write JSON") }

// Show writes v as JSON if that was asked for, or else what text writes, in aligned columns. It
// returns an error unless all of it was written.
func Show(c *cobra.Command, v any, text func(w io.Writer)) error {
	if asJSON, _ := c.Flags().GetBool("json"); asJSON {
		return WriteJSON(c.OutOrStdout(), v)
	}

	// Into memory first: text does not check errors, and a table that is cut off is not to be read.
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	text(w)
	if err := w.Flush(); err != nil {
		return err
	}

	_, err := table.WriteTo(c.OutOrStdout())
	return err
}

// WriteJSON writes v as people read it.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false) // leave <, > and & as they are: this is not for browsers
	return e.Encode(v)
}

// Row writes one line of a table. Times are in UTC; a nil time is a hyphen.
func Row(w io.Writer, cells ...any) {
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
		default: // it may come from a client
			texts[i] = printable(fmt.Sprint(v))
		}
	}
	fmt.Fprintln(w, strings.Join(texts, "\t"))
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
