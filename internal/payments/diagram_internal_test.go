package payments

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the diagram into docs/payments.md")

// The diagram of docs/payments.md is what the table of life says:
//
//	go test ./internal/payments -run TestDiagram -update
func TestDiagramIsTheTableOfLife(t *testing.T) {
	t.Parallel()
	const file, begin, end = "../../docs/payments.md", "```mermaid\n", "```\n"
	document, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(document), begin)
	drawn, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no diagram", file)
	}

	want := diagram()
	if drawn == want {
		return
	}
	if !*update {
		t.Fatalf("%s shows another life than life.go: run this test with -update\n%s", file, want)
	}
	if err := os.WriteFile(file, []byte(before+begin+want+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// diagram draws life for mermaid. A status that nothing leads out of is an end.
func diagram() string {
	var b strings.Builder
	b.WriteString("stateDiagram-v2\n")
	line := func(from, to, label string) { b.WriteString("    " + from + " --> " + to + label + "\n") }

	leaves, ends := map[Status]bool{}, []Status{}
	for _, l := range life {
		leaves[l.from] = true
	}
	for _, l := range life {
		from := string(l.from)
		if from == "" {
			from = "[*]"
		}
		line(from, string(l.to), ": "+string(l.action))
		if !leaves[l.to] {
			ends = append(ends, l.to)
		}
	}
	for _, s := range ends {
		line(string(s), "[*]", "")
	}
	return b.String()
}
