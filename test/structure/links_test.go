package structure

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// The documents name a test as a link whose text is the function and whose address is its file, so that a reader is one
// click away from it and a test can look: [`TestX`](../internal/x/x_test.go).
var (
	link       = regexp.MustCompile(`(?:\[([^\][]*))?\]\(([^()\s]*)(?:\s+"[^"]*")?\)`) // without text: it is around an image, or on two lines
	definition = regexp.MustCompile(`^ {0,3}\[([^\]^][^\]]*)\]:\s*(\S+)`)
	tag        = regexp.MustCompile(`<(img|a|source)\s[^>]*?(?:src|href|srcset)=["']([^"']*)["']`)
	scheme     = regexp.MustCompile(`^[a-z]+:`)
	heading    = regexp.MustCompile(`(?m)^#{1,6} +(.+)$`)
	code       = regexp.MustCompile("`([^`]+)`")
	testName   = regexp.MustCompile(`^(Test|Example|Fuzz|Benchmark)[A-Z]\w*$`)
)

// wrongNames says which files, headings and tests a document names that are not there.
func wrongNames(document, text string) (wrong []string) {
	text = withoutCode(text)
	for line := range strings.Lines(text) {
		for _, kind := range []*regexp.Regexp{link, definition, tag} {
			for _, l := range kind.FindAllStringSubmatch(line, -1) {
				if complaint := wrongLink(document, text, strings.Trim(l[1], "`"), l[2]); complaint != "" {
					wrong = append(wrong, complaint)
				}
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

// wrongLink says what is wrong with a link of a document that reads text.
func wrongLink(document, text, name, address string) string {
	isTest := testName.MatchString(name)
	path, anchor, _ := strings.Cut(address, "#")
	file := filepath.Join(filepath.Dir(document), filepath.FromSlash(path))
	switch {
	case address == "":
		return fmt.Sprintf("the link %q goes nowhere", name)
	case isTest && !isTestIn(name, file):
		return fmt.Sprintf("%s is no test in %s", name, address)
	case isTest || scheme.MatchString(address):
		return ""
	}
	switch _, err := os.Stat(file); {
	case path == "": // a heading of the document itself
	case err != nil:
		return fmt.Sprintf("%s does not exist", address)
	case filepath.Ext(file) != ".md":
		return "" // lines of a source file
	default:
		b, err := os.ReadFile(file)
		if err != nil {
			return err.Error()
		}
		text = withoutCode(string(b))
	}
	if anchor != "" && !slices.Contains(anchors(text), anchor) {
		return fmt.Sprintf("%s: there is no such heading", address)
	}
	return ""
}

// isTestIn says whether a file has that test, and go test compiles it here.
func isTestIn(name, file string) bool {
	if built, err := build.Default.MatchFile(filepath.Split(file)); err != nil || !built || !strings.HasSuffix(file, "_test.go") {
		return false
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(parsed.Decls, func(d ast.Decl) bool {
		f, is := d.(*ast.FuncDecl)
		return is && f.Name.Name == name && isRun(f)
	})
}

// isRun says whether go test takes a function for what its name says.
func isRun(f *ast.FuncDecl) bool {
	parameters := ""
	for _, p := range f.Type.Params.List {
		parameters += types.ExprString(p.Type)
	}
	want := map[string]string{"Test": "*testing.T", "Fuzz": "*testing.F", "Benchmark": "*testing.B", "Example": ""}
	kind := testName.FindStringSubmatch(f.Name.Name)[1]
	return f.Recv == nil && f.Type.TypeParams == nil && f.Type.Results == nil && f.Type.Params.NumFields() <= 1 && parameters == want[kind]
}

// anchors are the names that GitHub gives to the headings of a text: small letters, digits, - and _, with a number where one
// is there again.
func anchors(text string) (all []string) {
	seen := map[string]int{}
	for _, h := range heading.FindAllStringSubmatch(text, -1) {
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(link.ReplaceAllString(h[1], "$1")))
		if seen[anchor]++; seen[anchor] > 1 {
			anchor = fmt.Sprintf("%s-%d", anchor, seen[anchor]-1)
		}
		all = append(all, anchor)
	}
	return all
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
