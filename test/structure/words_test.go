package structure

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestEveryDependencyHasItsReason compares go.mod with the table in docs/design.md.
func TestEveryDependencyHasItsReason(t *testing.T) {
	t.Parallel()
	direct, _, _ := strings.Cut(read(t, filepath.Join(root, "go.mod")), "// indirect")
	var required []string
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) v\S+$`).FindAllStringSubmatch(direct, -1) {
		required = append(required, m[1])
	}
	table := section(t, "docs/design.md", "## Dependencies")
	var given []string
	for _, row := range regexp.MustCompile(`(?m)^\| (`+"`"+`.*?) \| \S`).FindAllStringSubmatch(table, -1) {
		first := ""
		for _, name := range code.FindAllStringSubmatch(row[1], -1) {
			module, short := strings.CutPrefix(name[1], "…")
			if short {
				module = first + module
			} else {
				first = module
			}
			given = append(given, module)
		}
	}
	slices.Sort(required)
	slices.Sort(given)
	if len(required) < 10 || !slices.Equal(required, given) {
		t.Errorf("go.mod requires\n%s\nand docs/design.md gives reasons for\n%s", strings.Join(required, "\n"), strings.Join(given, "\n"))
	}
}

// TestACommandIsTheSameWordEverywhere: what `make help` lists stands in CONTRIBUTING.md, and README, CONTRIBUTING.md and CI
// name no command that it does not list.
func TestACommandIsTheSameWordEverywhere(t *testing.T) {
	t.Parallel()
	var listed []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z-]+):.*## `).FindAllStringSubmatch(read(t, filepath.Join(root, "Makefile")), -1) {
		listed = append(listed, m[1])
	}
	if len(listed) < 10 {
		t.Fatalf("make help lists %v", listed)
	}
	named := func(file string) (words []string) {
		for _, m := range regexp.MustCompile("(?m)(?:`| |\t)make ([a-z]+(?:-[a-z]+)*)(?:`|$|  | \\|| && )").FindAllStringSubmatch(read(t, filepath.Join(root, file)), -1) {
			words = append(words, m[1])
		}
		return words
	}
	contributing := named("CONTRIBUTING.md")
	for _, command := range listed {
		if command != "help" && !slices.Contains(contributing, command) {
			t.Errorf("CONTRIBUTING.md does not name make %s", command)
		}
	}
	for _, file := range []string{"README.md", "CONTRIBUTING.md", "docs/operating.md", ".ci/run", ".github/workflows/ci.yml"} {
		for _, command := range named(file) {
			if !slices.Contains(listed, command) {
				t.Errorf("%s names make %s, which make help does not list", file, command)
			}
		}
	}
}

// section returns what a document says under a heading of the second level.
func section(t *testing.T, file, heading string) string {
	t.Helper()
	_, text, found := strings.Cut(read(t, filepath.Join(root, file)), "\n"+heading+"\n")
	if !found {
		t.Fatalf("%s has no %q", file, heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}
