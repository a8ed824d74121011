package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// mutant is a bug that could be planted: in its file, new takes the place of old.
type mutant struct {
	name, what, file string
	packages         []string
	tests            string // -run
	old, new         string
}

var (
	kebab    = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	testLine = regexp.MustCompile(`^((?:\./\S+ )+)-run '?([^' ]+)'?$`)
)

// readMutants reads all files of a folder, in the order of their names.
func readMutants(folder string) ([]mutant, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.txt"))
	if err != nil {
		return nil, err
	}

	var all []mutant
	var wrong []error
	seen := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}

		before, sections, _ := strings.Cut("\n"+string(text), "\n=== ")
		if strings.TrimSpace(before) != "" {
			wrong = append(wrong, fmt.Errorf("%s: text before the first ===", file))
		}
		for section := range strings.SplitSeq(sections, "\n=== ") {
			m, err := parse(section)
			if err == nil && seen[m.name] {
				err = errors.New("the name is there twice")
			}
			if err != nil {
				wrong = append(wrong, fmt.Errorf("%s: %q: %w", file, m.name, err))
			}
			seen[m.name] = true
			all = append(all, m)
		}
	}

	return all, errors.Join(wrong...)
}

// parse reads what follows "=== " up to the next one.
func parse(section string) (m mutant, err error) {
	head, change, hasOld := strings.Cut(section, "\n--- old\n")
	old, replacement, hasNew := strings.Cut("\n"+change+"\n", "\n--- new\n")
	m.old, m.new = strings.TrimPrefix(old, "\n"), strings.TrimRight(replacement, "\n")

	name, fields, _ := strings.Cut(head, "\n")
	m.name = name
	for line := range strings.Lines(fields) {
		field, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch {
		case field == "what" && m.what == "":
			m.what = value
		case field == "file" && m.file == "":
			m.file = value
		case field == "test" && m.tests == "":
			parts := testLine.FindStringSubmatch(value)
			if parts == nil {
				return m, fmt.Errorf("test must be packages and -run 'regexp', not %q", value)
			}

			m.packages, m.tests = strings.Fields(parts[1]), parts[2]
		default:
			return m, fmt.Errorf("unknown or second field %q", field)
		}
	}

	switch {
	case !kebab.MatchString(m.name):
		return m, errors.New("a name has lower-case letters, digits and hyphens")
	case m.what == "" || m.file == "" || m.tests == "":
		return m, errors.New("what, file and test are needed")
	case !hasOld || !hasNew || strings.TrimSpace(m.old) == "":
		return m, errors.New("--- old with text and --- new are needed")
	case m.old == m.new:
		return m, errors.New("old and new are the same")
	}

	return m, nil
}

// check returns an error unless all tests that the mutant names are there and pass without it.
func (m *mutant) check(baseline map[string]result) error {
	for pattern := range strings.SplitSeq(m.tests, "|") {
		top, _, _ := strings.Cut(pattern, "/")
		is, err := regexp.Compile(top)
		if err != nil {
			return err
		}

		found := false
		for _, p := range m.packages {
			for test, passed := range baseline[p].passed {
				if is.MatchString(test) && !passed {
					return fmt.Errorf("%s fails without it", test)
				}

				found = found || is.MatchString(test)
			}
		}

		if !found {
			return fmt.Errorf("no test %s passes in %v", pattern, m.packages)
		}
	}

	return nil
}

// overlay plants the bug in a copy of the file and returns what -overlay reads.
func (m *mutant) overlay() (file string, remove func(), err error) {
	text, err := os.ReadFile(m.file)
	if err != nil {
		return "", nil, err
	}

	if n := strings.Count(string(text), m.old); n != 1 {
		return "", nil, fmt.Errorf("old is %d times in %s, must be there once", n, m.file)
	}

	original, err := filepath.Abs(m.file)
	if err != nil {
		return "", nil, err
	}

	folder, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return "", nil, err
	}

	copied, file := filepath.Join(folder, filepath.Base(m.file)), filepath.Join(folder, "overlay.json")
	planted := strings.Replace(string(text), m.old, m.new, 1)
	overlay, _ := json.Marshal(map[string]any{"Replace": map[string]string{original: copied}}) // strings only
	err = errors.Join(os.WriteFile(copied, []byte(planted), 0o600), os.WriteFile(file, overlay, 0o600))
	return file, func() { os.RemoveAll(folder) }, err
}
