package structure

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The documents name a test as a link whose text is the function and whose address is its file, so that a reader is one
// click away from it and this test can look: [`TestX`](../internal/x/x_test.go).
var (
	link     = regexp.MustCompile(`\[([^\][]*)\]\(([^()\s]+)\)`)
	code     = regexp.MustCompile("`([^`]+)`")
	testName = regexp.MustCompile(`^(Test|Example|Fuzz|Benchmark)[A-Z]\w*$`)
)

// The table that says what the whole project is for, on the README's first screen.
const (
	whatIfHeader = "| what if … | what happens | the test that shows it |"
	whatIfRows   = 12 // no fewer
)

func TestEveryTestAndEveryFileThatADocumentNamesExists(t *testing.T) {
	t.Parallel()
	documents := 0
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			documents++
			for _, wrong := range wrongNames(file, read(t, file)) {
				t.Errorf("%s: %s", strings.TrimPrefix(filepath.ToSlash(file), root+"/"), wrong)
			}
		}
	}
	if documents < 10 {
		t.Errorf("%d documents were found", documents)
	}
}

func TestTheWhatIfTableOfTheREADMEShowsATestInEveryRow(t *testing.T) {
	t.Parallel()
	for _, wrong := range wrongWhatIfTable(read(t, filepath.Join(root, "README.md"))) {
		t.Error("README.md: " + wrong)
	}
}

func TestAWrongNameInADocumentIsFound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "x", "x_test.go"), "package x\n\nfunc TestThere(t *testing.T) {}\n\n// func TestGone(t *testing.T) {}\n")
	document := filepath.Join(dir, "docs", "page.md")
	for text, found := range map[string]bool{
		"[`TestThere`](../x/x_test.go)":                               false,
		"| two | [`TestThere`](../x/x_test.go), [x](../x) |":          false,
		"[a place](../x/x_test.go#L3), [the net](https://there.test)": false,
		"[here](#a-heading), `Testing` and `TestThere.x`":             false,
		"```\n`TestGone` [`TestGone`](nowhere.go)\n```\n":             false,
		"[`TestGone`](../x/x_test.go)":                                true,
		"[`TestThere`](../x/y_test.go)":                               true,
		"[`TestThere`](https://there.test)":                           true,
		"[nowhere](nowhere.md)":                                       true,
		"`TestThere` without a link":                                  true,
		"`TestThere` and, in one line, [`TestThere`](../x/x_test.go)": true,
		"```\ncode\n```\n[nowhere](nowhere.md)":                       true,
	} {
		if wrong := wrongNames(document, text); (len(wrong) > 0) != found {
			t.Errorf("%q: %q", text, wrong)
		}
	}
	row, without := "| a | b | [`TestX`](x_test.go) |\n", "| a | [`TestX`](x_test.go) | |\n"
	table := "text\n" + whatIfHeader + "\n|---|---|---|\n" + strings.Repeat(row, whatIfRows-1)
	for text, found := range map[string]bool{
		table + row + "\nmore text": false, table: true, table + without: true, table + row + without: true, table + "\n" + row: true, row: true,
	} {
		if wrong := wrongWhatIfTable(text); (len(wrong) > 0) != found {
			t.Errorf("%q: %q", text, wrong)
		}
	}
}

// wrongNames says which files and tests a document names that are not there.
func wrongNames(document, text string) (wrong []string) {
	for line := range strings.Lines(withoutCode(text)) {
		for _, l := range link.FindAllStringSubmatch(line, -1) {
			if complaint := wrongLink(filepath.Dir(document), l[1], l[2]); complaint != "" {
				wrong = append(wrong, complaint)
			}
		}
		for _, c := range code.FindAllStringSubmatch(link.ReplaceAllString(line, ""), -1) {
			if testName.MatchString(c[1]) {
				wrong = append(wrong, fmt.Sprintf("%s is no link to its file", c[1]))
			}
		}
	}
	return wrong
}

func wrongLink(dir, text, address string) string {
	name := strings.Trim(text, "`")
	isTest := testName.MatchString(name)
	path, _, _ := strings.Cut(address, "#")
	switch {
	case strings.Contains(address, "://") && isTest:
		return fmt.Sprintf("%s is a link to %s and not to its file", name, address)
	case strings.Contains(address, "://") || strings.HasPrefix(address, "mailto:") || path == "":
		return ""
	}
	file := filepath.Join(dir, filepath.FromSlash(path))
	if !isTest {
		if _, err := os.Stat(file); err != nil {
			return fmt.Sprintf("%s does not exist", address)
		}
		return ""
	}
	source, err := os.ReadFile(file)
	if err != nil {
		return fmt.Sprintf("%s: %s does not exist", name, address)
	}
	if !strings.Contains("\n"+string(source), "\nfunc "+name+"(") {
		return fmt.Sprintf("%s is not in %s", name, address)
	}
	return ""
}

// wrongWhatIfTable says what the table lacks: rows, or a test in the last column of one.
func wrongWhatIfTable(text string) (wrong []string) {
	lines := strings.Split(text, "\n")
	header := slices.Index(lines, whatIfHeader)
	if header < 0 {
		return []string{"there is no table with the header " + whatIfHeader}
	}
	rows := 0
	for _, line := range lines[min(header+2, len(lines)):] {
		if !strings.HasPrefix(line, "|") {
			break
		}
		rows++
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) != 3 || !slices.ContainsFunc(link.FindAllStringSubmatch(cells[2], -1), func(l []string) bool {
			return testName.MatchString(strings.Trim(l[1], "`"))
		}) {
			wrong = append(wrong, "no test in the last of three columns: "+line)
		}
	}
	if rows < whatIfRows {
		wrong = append(wrong, fmt.Sprintf("the table “what if …” has %d rows, and must have %d", rows, whatIfRows))
	}
	return wrong
}

// withoutCode drops fenced blocks.
func withoutCode(text string) string {
	var kept strings.Builder
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}
		if !fenced {
			kept.WriteString(line)
		}
	}
	return kept.String()
}
