package plans

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var ofAdopt = []string{
	"lookAtCursor", "checkCounters", "adoptCursor", "lookAtCopy", "sentAtSource", "sentHere", "adoptMoved", "adoptLetters",
}

// sources are the files whose statements the programs send for a request, and for its event.
var sources = []string{
	"internal/payments/*.go", "internal/idempotency/*.go", "internal/httpapi/*.go", "internal/credentials/verify.go",
	"internal/outbox/*.go", "internal/relay/*.go", "internal/inbox/*.go", "internal/statements/*.go",
}

// wantAllSent fails the test for each statement in the sources that was not sent, and so not explained. A statement is a string constant.
func (s *service) wantAllSent(t *testing.T) {
	t.Helper()
	sent := map[string]bool{}
	for _, r := range s.sent {
		for _, st := range r.all() {
			sent[st.sql] = true
		}
	}
	found := 0
	for _, pattern := range sources {
		files, err := filepath.Glob(filepath.Join("..", "..", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no such files (%v)", pattern, err)
		}
		for name, sql := range constants(t, files) {
			switch verb, _, _ := strings.Cut(strings.TrimSpace(sql), " "); verb {
			case "SELECT", "INSERT", "UPDATE", "DELETE", "WITH":
				if verb == "SELECT" && (!strings.Contains(sql, "FROM") || strings.Contains(sql, "FROM pg_settings")) {
					continue // of no table
				}
				if name == "holders" || name == "claimDue" {
					continue // the beginning of two others
				}
				if name == "readCursors" {
					continue // of oncepay outbox: its test looks at the plan
				}
				if slices.Contains(ofAdopt, name) {
					continue // of relay adopt, once in years: the ends of indexes, and one row
				}
				if name == "lockHolders" {
					continue // of no table of ours, and in a stall only
				}
				if name == "countOverdue" {
					continue // a metric of the worker, of 1,000 rows at most
				}
				if name == "countWaiting" {
					continue // a metric of the worker, which counts all that a partial index has
				}
				if name == "sumBalances" || name == "checkAccounts" {
					continue // the worker's too, which look at all accounts: TestBooksGoByTheirIndexes
				}
				found++
				if !sent[sql] {
					t.Errorf("%s was not sent, so nobody knows its plan: extend caller.use, service.publish or service.consume", name)
				}
			}
		}
	}
	if found < 15 {
		t.Errorf("only %d statements in the sources: they are no longer string constants", found)
	}
}

// constants returns the string constants of files, those that are put together of others included.
func constants(t *testing.T, files []string) map[string]string {
	t.Helper()
	written := map[string]ast.Expr{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if group, ok := d.(*ast.GenDecl); ok && group.Tok == token.CONST {
				for _, spec := range group.Specs {
					for i, v := range spec.(*ast.ValueSpec).Values {
						written[spec.(*ast.ValueSpec).Names[i].Name] = v
					}
				}
			}
		}
	}
	values := map[string]string{}
	for name, e := range written {
		values[name] = text(e, written)
	}
	return values
}

// text is the value of an expression; what is no string is nothing.
func text(e ast.Expr, constants map[string]ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		if err != nil {
			return ""
		}
		return s
	case *ast.BinaryExpr:
		return text(e.X, constants) + text(e.Y, constants)
	case *ast.Ident:
		return text(constants[e.Name], constants)
	}
	return ""
}
