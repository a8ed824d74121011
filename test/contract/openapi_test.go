package contract_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/oncepay/oncepay/api"
	"github.com/oncepay/oncepay/internal/httpapi"
)

func TestTheSpecificationIsValid(t *testing.T) {
	t.Parallel()
	text, err := api.Files.ReadFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	spec, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := spec.Validate(t.Context()); err != nil { // examples included
		t.Error(err)
	}
}

func TestTheSpecificationHasTheRoutesOfTheProgram(t *testing.T) {
	t.Parallel()
	var programs, documented []string
	routes := httpapi.New(httpapi.Options{PSP: &httpapi.PSPWebhooks{Secret: pspSecret}}).(chi.Routes)
	err := chi.Walk(routes, func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		programs = append(programs, method+" "+route)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, item := range specification(t).Paths.Map() {
		for method := range item.Operations() {
			documented = append(documented, method+" "+path)
		}
	}
	slices.Sort(programs)
	slices.Sort(documented)
	if diff := cmp.Diff(programs, documented); diff != "" {
		t.Errorf("program (-), specification (+):\n%s", diff)
	}
}

// problem is what a code always comes with.
type problem struct {
	Code   string
	Status int
	Retry  string
}

// Nobody can have these over HTTP: such accounts are opened by oncepay seed.
var notOverHTTP = []string{"system-account-exists", "clearing-account-exists"}

func TestTheSpecificationHasTheProblemsOfTheProgram(t *testing.T) {
	t.Parallel()
	programs := slices.DeleteFunc(problemsInSource(t), func(p problem) bool { return slices.Contains(notOverHTTP, p.Code) })
	table := problemsInTable(t)
	if diff := cmp.Diff(byCode(programs), byCode(table)); diff != "" {
		t.Errorf("program (-), table of the specification (+):\n%s", diff)
	}
	statuses := map[string]int{}
	for _, a := range documentedAnswers(t) {
		if a.code == "" {
			continue
		}
		if status, there := statuses[a.code]; there && status != a.status {
			t.Errorf("%s is documented with %d and %d", a.code, status, a.status)
		}
		statuses[a.code] = a.status
	}
	statuses["method-not-allowed"] = http.StatusMethodNotAllowed // of no operation
	for _, p := range programs {
		if statuses[p.Code] != p.Status {
			t.Errorf("%s: the program gives %d, responses have %d", p.Code, p.Status, statuses[p.Code])
		}
		delete(statuses, p.Code)
	}
	for code := range statuses {
		t.Errorf("%s is documented, but no code of the program", code)
	}
}

func byCode(ps []problem) map[string]problem {
	m := map[string]problem{}
	for _, p := range ps {
		m[p.Code] = p
	}
	return m
}

var tableRow = regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| (\\d{3}) \\| `([a-z-]+)` \\| .+ \\|$")

// problemsInTable reads the table in the description of the specification.
func problemsInTable(t testing.TB) (ps []problem) {
	t.Helper()
	for _, row := range tableRow.FindAllStringSubmatch(specification(t).Info.Description, -1) {
		status, _ := strconv.Atoi(row[2])
		ps = append(ps, problem{row[1], status, row[3]})
	}
	return ps
}

// problemsInSource reads the one table that the API makes problems from. A code that is not in it panics.
func problemsInSource(t testing.TB) (ps []problem) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../internal/httpapi/problem.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	constants := map[string]string{}
	text := func(e ast.Expr) string {
		if name, ok := e.(*ast.Ident); ok {
			return constants[name.Name]
		}
		s, _ := strconv.Unquote(e.(*ast.BasicLit).Value)
		return s
	}
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || len(v.Values) != 1 {
			return true
		}
		switch value := v.Values[0].(type) {
		case *ast.BasicLit:
			constants[v.Names[0].Name] = text(value)
		case *ast.CompositeLit:
			if v.Names[0].Name != "kinds" {
				break
			}
			for _, e := range value.Elts {
				row := e.(*ast.KeyValueExpr)
				fields := row.Value.(*ast.CompositeLit).Elts
				status, _ := strconv.Atoi(fields[0].(*ast.BasicLit).Value)
				ps = append(ps, problem{text(row.Key), status, text(fields[2])})
			}
		}
		return true
	})
	if len(ps) == 0 {
		t.Fatal("httpapi's table of problems is not where it was")
	}
	return ps
}

// specification loads openapi.yaml with closed schemas.
func specification(t testing.TB) *openapi3.T {
	t.Helper()
	d := read(t, "openapi.yaml")
	for _, schema := range at(t, d, "components", "schemas") {
		closeObject(schema)
	}
	spec, err := openapi3.NewLoader().LoadFromData(encode(t, d))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// answer is one that an operation is documented to give; code is empty unless it is a problem.
type answer struct {
	operation string
	status    int
	code      string
}

// documentedAnswers takes the codes from the enum that each problem response has.
func documentedAnswers(t testing.TB) (all []answer) {
	t.Helper()
	d := read(t, "openapi.yaml")
	for _, item := range at(t, d, "paths") {
		for method, o := range item.(document) {
			if method == "parameters" {
				continue
			}
			operation := o.(document)
			id := operation["operationId"].(string)
			for digits, r := range at(t, operation, "responses") {
				status, err := strconv.Atoi(digits)
				if err != nil {
					t.Fatal(err)
				}
				for _, code := range codesOf(t, d, r.(document)) {
					all = append(all, answer{id, status, code})
				}
			}
		}
	}
	return all
}

func codesOf(t testing.TB, d, response document) (codes []string) {
	t.Helper()
	if ref, ok := response["$ref"].(string); ok {
		response = at(t, d, "components", "responses", ref[len("#/components/responses/"):])
	}
	if response["content"] == nil {
		return []string{""} // 204, 304
	}
	content := at(t, response, "content")
	if content["application/problem+json"] == nil {
		return []string{""}
	}
	for _, code := range at(t, content, "application/problem+json", "schema", "properties", "code")["enum"].([]any) {
		codes = append(codes, code.(string))
	}
	return codes
}
