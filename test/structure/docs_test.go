package structure

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const whatIfHeader = "| what if … | what happens | the test that shows it |"

// whatIfRows is the least number of rows of each table: the strongest are on the README's first screen, all of them in
// the guarantees.
var whatIfRows = map[string]int{"README.md": 8, "docs/guarantees.md": 29}

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

func TestWhatIfTables(t *testing.T) {
	t.Parallel()
	for file, rows := range whatIfRows {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			for _, wrong := range wrongWhatIfTable(read(t, filepath.Join(root, file)), rows) {
				t.Error(wrong)
			}
		})
	}

	t.Run("guarantees have every row of the README", func(t *testing.T) {
		t.Parallel()
		guarantees := read(t, filepath.Join(root, "docs/guarantees.md"))
		_, table, _ := strings.Cut(read(t, filepath.Join(root, "README.md")), whatIfHeader)
		table, _, _ = strings.Cut(table, "\n\n")
		for _, l := range link.FindAllStringSubmatch(table, -1) {
			if !strings.Contains(guarantees, l[1]) {
				t.Errorf("docs/guarantees.md does not name %s", l[1])
			}
		}
	})
}

func TestAWrongNameInADocumentIsFound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"x/x_test.go": "package x\n\nfunc TestThere(t *testing.T) {}\n\n// func TestGone(t *testing.T) {}\n\nvar text = `\nfunc TestText(t *testing.T) {}`\n\n" +
			"func TestWithout() {}\nfunc TestResult(t *testing.T) error\nfunc TestBench(b *testing.B) {}\nfunc (x) TestMethod(t *testing.T) {}\n" +
			"func FuzzThere(f *testing.F) {}\nfunc BenchmarkThere(b *testing.B) {}\nfunc ExampleThere() {}\nfunc ExampleT(t *testing.T) {}\n",
		"x/x.go":            "package x\n\nfunc TestThere(t *testing.T) {}\n",
		"x/ignored_test.go": "//go:build ignore\n\npackage x\n\nfunc TestThere(t *testing.T) {}\n",
		"docs/other.md":     "# The `outbox`, and *why*\n\n## Twice\n\n## Twice\n\n```\n# Code\n```\n",
	} {
		write(t, filepath.Join(dir, filepath.FromSlash(name)), text)
	}
	document := filepath.Join(dir, "docs", "page.md")
	for text, found := range map[string]bool{
		"[`TestThere`](../x/x_test.go)":                               false,
		"[`FuzzThere`](../x/x_test.go)":                               false,
		"[`BenchmarkThere`](../x/x_test.go)":                          false,
		"[`ExampleThere`](../x/x_test.go)":                            false,
		"| two | [`TestThere`](../x/x_test.go), [x](../x) |":          false,
		"[a place](../x/x_test.go#L3), [the net](https://there.test)": false,
		"`Testing` and `TestThere.x`":                                 false,
		"```\n`TestGone` [`TestGone`](nowhere.go)\n```\n":             false,
		"[`TestGone`](../x/x_test.go)":                                true,
		"[`TestText`](../x/x_test.go)":                                true,
		"[`TestWithout`](../x/x_test.go)":                             true,
		"[`TestResult`](../x/x_test.go)":                              true,
		"[`TestBench`](../x/x_test.go)":                               true,
		"[`TestMethod`](../x/x_test.go)":                              true,
		"[`ExampleT`](../x/x_test.go)":                                true,
		"[`TestThere`](../x/x.go)":                                    true,
		"[`TestThere`](../x/ignored_test.go)":                         true,
		"[`TestThere`](../x/y_test.go)":                               true,
		"[`TestThere`](https://there.test)":                           true,
		"`TestThere` without a link":                                  true,
		"`TestThere` and, in one line, [`TestThere`](../x/x_test.go)": true,

		"[nowhere](nowhere.md)":                                      true,
		"[nowhere](nowhere.md \"with a title\")":                     true,
		"[nothing]()":                                                true,
		"```\ncode\n```\n[nowhere](nowhere.md)":                      true,
		"![an image](../x/x.go) <img src=\"../x/x.go\" width=\"1\">": false,
		"![](nowhere.svg)":                                           true,
		"[![an image](nowhere.svg)](../x)":                           true,
		"[![an image](../x/x.go)](nowhere.md)":                       true,
		"<img width=\"1\" src=\"nowhere.svg\">":                      true,
		"<a href='nowhere.md'>":                                      true,
		"[x]\n\n[x]: ../x/x.go":                                      false,
		"[x]\n\n[x]: https://there.test":                             false,
		"[x]\n\n[x]: nowhere.md":                                     true,

		"[here](#a-heading-once)\n\n### A heading: once!": false,
		"[here](#a-heading)":                              true,
		"[there](other.md#the-outbox-and-why)":            false,
		"[there](other.md#twice-1)":                       false,
		"[there](other.md#twice-2)":                       true,
		"[there](other.md#code)":                          true,
		"[there](other.md#The-outbox-and-why)":            true,
	} {
		if wrong := wrongNames(document, text); (len(wrong) > 0) != found {
			t.Errorf("%q: %q", text, wrong)
		}
	}
}

func TestAWhatIfTableWithoutItsTestsIsFound(t *testing.T) {
	t.Parallel()
	const rows = 12
	row, without := "| a | b | [`TestX`](x_test.go) |\n", "| a | [`TestX`](x_test.go) | |\n"
	table := "text\n" + whatIfHeader + "\n|---|---|---|\n" + strings.Repeat(row, rows-1)
	for text, found := range map[string]bool{
		table + row + "\nmore text": false, table: true, table + without: true, table + row + without: true, table + "\n" + row: true, row: true,
	} {
		if wrong := wrongWhatIfTable(text, rows); (len(wrong) > 0) != found {
			t.Errorf("%q: %q", text, wrong)
		}
	}
}

// wrongWhatIfTable returns what the table lacks: rows, of which it must have want, or a test in the last column of one.
func wrongWhatIfTable(text string, want int) (wrong []string) {
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
	if rows < want {
		wrong = append(wrong, fmt.Sprintf("the table “what if …” has %d rows, and must have %d", rows, want))
	}
	return wrong
}
