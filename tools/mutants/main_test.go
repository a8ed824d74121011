package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestEveryMutantCanBePlanted compiles nothing and runs nothing: it sees at once what an edit has left behind in test/mutants.
func TestEveryMutantCanBePlanted(t *testing.T) {
	t.Chdir("../..")
	all, err := readMutants("test/mutants")
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 60 {
		t.Errorf("%d mutants", len(all))
	}

	tests := map[string]result{}
	for _, m := range all {
		for _, p := range m.packages {
			if _, known := tests[p]; !known {
				tests[p] = result{passed: declared(t, p)}
			}
		}
		if err := m.check(tests); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		_, remove, err := m.overlay()
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
			continue
		}
		remove()
	}
}

// declared returns the tests of a folder.
func declared(t *testing.T, folder string) map[string]bool {
	t.Helper()
	tests := map[string]bool{}
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing`).FindAllSubmatch(text, -1) {
			tests[string(m[1])] = true
		}
	}
	return tests
}

// module is a program with a bug-free sum, and tests of it.
var module = map[string]string{
	"go.mod": "module example\n\ngo 1.26\n",
	"sum.go": "package example\n\nfunc Sum(a, b int) int {\n\tfor b < 0 {\n\t\tb, a = b+1, a-1\n\t}\n\treturn a + b\n}\n",
	"sum_test.go": `package example

import "testing"

func TestSum(t *testing.T) {
	if Sum(2, 3) != 5 {
		t.Errorf("2 + 3 is %d", Sum(2, 3))
	}
}

func TestNegative(t *testing.T) {
	if Sum(2, -2) != 0 {
		t.Fatal("not zero")
	}
}

func TestRed(t *testing.T) { t.Error("always") }
`,
}

func mutantText(name, test, old, planted string) string {
	return "=== " + name + "\nwhat: about " + name + "\nfile: sum.go\ntest: ./. -run '" + test + "'\n--- old\n" + old + "\n--- new\n" + planted + "\n"
}

func TestVerdicts(t *testing.T) {
	folder := t.TempDir()
	t.Chdir(folder)
	files := map[string]string{"test/mutants/a.txt": mutantText("difference", "TestSum", "a + b", "a - b") +
		mutantText("unseen", "TestSum", "a-1", "a-2") +
		mutantText("deleted", "TestSum", "\treturn a + b", "") +
		mutantText("hangs", "TestSum|TestNegative", "b+1", "b")}
	files["test/mutants/b.txt"] = mutantText("twice", "TestSum", "int", "int64") +
		mutantText("no-test", "TestSum|TestNone", "a + b", "a - b") +
		mutantText("red-test", "TestRed", "a + b", "a - b")
	for name, text := range module {
		files[name] = text
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"-timeout", "10s"}, &stdout, &stderr); code != 1 {
		t.Errorf("exit code %d: %s", code, stderr.String())
	}
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^\[\d/7\] (\w+) +\S+s (.*)$`).FindAllStringSubmatch(stdout.String(), -1) {
		got = append(got, m[1]+" "+regexp.MustCompile(`\S+/sum.go`).ReplaceAllString(m[2], "sum.go"))
	}
	slices.Sort(got)
	want := []string{
		"BROKEN deleted: does not compile: sum.go:8:1: missing return",
		"BROKEN no-test: no test TestNone passes in [./.]",
		"BROKEN red-test: TestRed fails without it",
		"BROKEN twice: old is 2 times in sum.go, must be there once",
		"SURVIVED unseen: about unseen",
		"caught difference: TestSum sum_test.go:7: 2 + 3 is -1",
		"caught hangs: hung for 10s",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s\nwant\n%s\nall:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"), stdout.String())
	}
	end := regexp.MustCompile(`2 of 7 caught, 1 survived, 4 broken, in \S+
  BROKEN   deleted
  BROKEN   no-test
  BROKEN   red-test
  BROKEN   twice
  SURVIVED unseen
$`)
	if !end.MatchString(stdout.String()) {
		t.Error(stdout.String())
	}
	stdout.Reset()
	if code := run(t.Context(), []string{"-run", "^unseen$"}, &stdout, &stderr); code != 1 {
		t.Errorf("one survived, exit code %d: %s", code, stdout.String())
	}
	if code := run(t.Context(), []string{"-run", "^difference$"}, &stdout, &stderr); code != 0 {
		t.Errorf("all caught, exit code %d: %s", code, stdout.String())
	}
}

func TestMalformedMutantsAreErrors(t *testing.T) {
	t.Parallel()
	good := mutantText("good", "TestSum", "a + b", "a - b")
	for change, want := range map[string]string{
		"":                                     "",
		"=== good → === Good":                  "lower-case",
		"what: → why: ":                        `field "why"`,
		"file: sum.go\n → ":                    "are needed",
		"file: sum.go → file: a\nfile: sum.go": `second field "file"`,
		"-run 'TestSum' → ":                    "-run",
		"--- old → --- before":                 "field",
		"--- new → --- after":                  "--- new are needed",
		"a - b → a + b":                        "the same",
		"=== good → x\n=== good":               "before the first",
	} {
		from, to, _ := strings.Cut(change, " → ")
		folder := t.TempDir()
		text := strings.Replace(good, from, to, 1)
		if err := os.WriteFile(filepath.Join(folder, "x.txt"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := readMutants(folder)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", change, err, want)
		}
	}
}

func TestWrongArgumentsAreOneLine(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-x"}, {"-run", "("}, {"more"}} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), args, &stdout, &stderr); code != 1 || strings.Count(stderr.String(), "\n") != 1 || stdout.Len() > 0 {
			t.Errorf("%q: exit code %d, %q, %q", args, code, stdout.String(), stderr.String())
		}
	}
}
