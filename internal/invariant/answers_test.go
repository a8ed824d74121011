package invariant_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/testenv"
)

func TestEveryRefusalOfAPaymentIsHeldToItsFirstAnswer(t *testing.T) {
	t.Parallel()
	w := &world{db: testenv.Database(t).Pool(t, ""), brokers: testenv.Brokers(t), prefix: testenv.TopicPrefix(t)}
	codes := refusals(t)
	client := uuid.New()
	for _, code := range codes {
		for _, answer := range []string{"first", "another"} {
			w.history = append(w.history, invariant.Exchange{
				ClientID: client, Key: code, Request: digest(code), Command: invariant.Pay, Status: 422, Code: code, Answer: digest(answer), Replayed: answer != "first",
			})
		}
	}
	r := w.check(t)
	wantWrong(t, r, invariant.AnswersChanged)
	if seen := r.Line(invariant.AnswersChanged).Wrong; seen != int64(len(codes)) {
		t.Errorf("every one of these answers changed, and %d were seen; the constant kept must name them all: %q", seen, codes)
	}
}

// refusals are the constants of type payments.Code, read from its source: there is no list to maintain. What a PSP made of a payment is
// never an answer.
func refusals(t *testing.T) (codes []string) {
	t.Helper()
	files, err := filepath.Glob("../payments/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, is := n.(*ast.ValueSpec)
			if is && fmt.Sprint(spec.Type) == "Code" {
				for i, v := range spec.Values {
					if name := spec.Names[i].Name; name == "CardDeclined" || name == "RefusedByPSP" {
						continue
					}
					code, err := strconv.Unquote(types.ExprString(v))
					if err != nil {
						t.Fatalf("%s: %s is no plain text", name, types.ExprString(v))
					}
					codes = append(codes, code)
				}
			}
			return true
		})
	}
	if len(codes) < 12 {
		t.Fatalf("the source has no more refusals than %q", codes)
	}
	return codes
}
