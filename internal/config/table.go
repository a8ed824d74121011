package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"
)

var programs = []struct {
	name   string
	config reflect.Type
}{
	{"api", reflect.TypeFor[API]()},
	{"relay", reflect.TypeFor[Relay]()},
	{"consumer", reflect.TypeFor[Consumer]()},
	{"worker", reflect.TypeFor[Worker]()},
	{"migrate", reflect.TypeFor[Migrate]()},
	{"oncepay", reflect.TypeFor[Oncepay]()},
}

// Table returns all variables as the Markdown table in the README. A variable has one row for each
// default or meaning it has; programs that share both share the row.
func Table() string {
	type row struct{ name, value, meaning string }
	var rows []row
	users := map[row][]string{}

	for _, p := range programs {
		for _, v := range variables(p.config) {
			// Programs that agree on all of a row share it.
			r := row{v.name, v.shownDefault("`"), v.help + v.bounds()}
			if !slices.Contains(rows, r) {
				rows = append(rows, r)
			}
			users[r] = append(users[r], p.name)
		}
	}

	var b strings.Builder
	b.WriteString("| variable | programs | default | meaning |\n|---|---|---|---|\n")
	for _, r := range rows {
		used := strings.Join(users[r], ", ")
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", r.name, used, r.value, r.meaning)
	}
	return b.String()
}

// Usage returns the variables of one program ("api", "relay", "consumer", "worker", "migrate" or
// "oncepay") as plain text for its -h.
func Usage(program string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)

	for _, p := range programs {
		if p.name != program {
			continue
		}
		for _, v := range variables(p.config) {
			fmt.Fprintf(w, "  %s\t%s\t%s\n", v.name, v.shownDefault(""), v.help+v.bounds())
		}
	}

	w.Flush() // to memory: cannot fail
	return b.String()
}

func (v variable) shownDefault(quote string) string {
	switch {
	case v.required:
		return "required"
	case v.defaultValue == "":
		return "unset"
	}
	return quote + v.defaultValue + quote
}

func (v variable) bounds() string {
	switch {
	case len(v.oneof) > 0:
		return " (" + strings.Join(v.oneof, " or ") + ")"
	case v.min != "" && v.max != "":
		return " (" + v.min + " to " + v.max + ")"
	case v.min != "" && v.min != "0":
		return " (at least " + v.min + ")"
	}
	return ""
}
