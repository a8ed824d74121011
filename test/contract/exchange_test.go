package contract_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/go-chi/chi/v5"

	"github.com/oncepay/oncepay/internal/httpapi"
)

// call is a request and the answer that it should get.
type call struct {
	name    string
	handler http.Handler
	method  string
	path    string
	bearer  string
	key     string // Idempotency-Key as it is sent; empty: none
	body    string
	reader  io.Reader         // in place of body
	header  map[string]string // further ones
	status  int
	code    string
}

func (c call) request(t testing.TB) *http.Request {
	body := c.reader
	if body == nil {
		body = strings.NewReader(c.body)
	}
	r := httptest.NewRequestWithContext(t.Context(), c.method, c.path, body)
	if c.bearer != "" {
		r.Header.Set("Authorization", "Bearer "+c.bearer)
	}
	if c.key != "" {
		r.Header.Set("Idempotency-Key", c.key)
	}
	if c.method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	for name, value := range c.header {
		r.Header.Set(name, value)
	}
	return r
}

// referee judges exchanges by the specification and remembers which of its answers it has seen.
type referee struct {
	spec   *openapi3.T
	routes chi.Routes // as in the specification: another test compares them
	table  map[string]problem
	seen   map[answer]bool
}

func newReferee(t testing.TB) *referee {
	t.Helper()
	routes := httpapi.New(httpapi.Options{PSP: &httpapi.PSPWebhooks{Secret: pspSecret}}).(chi.Routes)
	return &referee{spec: specification(t), routes: routes, table: byCode(problemsInTable(t)), seen: map[answer]bool{}}
}

// judge makes the call, holds request and answer to the specification and returns the answer.
func (f *referee) judge(t *testing.T, c call) *httptest.ResponseRecorder {
	t.Helper()
	input := f.input(t, c)
	w := httptest.NewRecorder()
	c.handler.ServeHTTP(w, c.request(t))
	name := fmt.Sprintf("%s: %s %s", c.name, c.method, c.path)

	var p problem
	if w.Header().Get("Content-Type") == "application/problem+json" {
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if p != f.table[p.Code] {
			t.Errorf("%s: the problem is %+v, the table has %+v", name, p, f.table[p.Code])
		}
	}
	if w.Code != c.status || p.Code != c.code {
		t.Errorf("%s: got %d %s, want %d %s: %s", name, w.Code, p.Code, c.status, c.code, w.Body)
	}
	err := openapi3filter.ValidateResponse(t.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: w.Code, Header: w.Header(), Body: io.NopCloser(strings.NewReader(w.Body.String())),
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	})
	if err != nil {
		t.Errorf("%s: the answer is not as described: %v", name, err)
	}
	f.checkHeaders(t, name, input.Route.Operation, w)
	f.checkRequest(t, name, input, p.Code)
	f.seen[answer{input.Route.Operation.OperationID, w.Code, p.Code}] = true
	return w
}

// input finds the operation that a call belongs to. What belongs to none is held to the two answers of the specification that
// are of no operation.
func (f *referee) input(t testing.TB, c call) *openapi3filter.RequestValidationInput {
	t.Helper()
	r := c.request(t)
	match, params := chi.NewRouteContext(), map[string]string{}
	route := &routers.Route{Spec: f.spec, Method: c.method, Path: c.path}
	if f.routes.Match(match, c.method, r.URL.Path) {
		route.PathItem = f.spec.Paths.Value(match.RoutePattern())
		route.Operation = route.PathItem.GetOperation(c.method)
		for i, name := range match.URLParams.Keys {
			params[name] = match.URLParams.Values[i]
		}
	} else {
		route.PathItem, route.Operation = &openapi3.PathItem{}, openapi3.NewOperation()
		route.Operation.Responses = openapi3.NewResponses(
			openapi3.WithStatus(http.StatusNotFound, f.spec.Components.Responses["NotFound"]),
			openapi3.WithStatus(http.StatusMethodNotAllowed, f.spec.Components.Responses["MethodNotAllowed"]))
	}
	return &openapi3filter.RequestValidationInput{
		Request: r, PathParams: params, Route: route,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc},
	}
}

// Every answer has these, the specification need not say so; the rest must be in it.
var ordinaryHeaders = []string{"Cache-Control", "Connection", "Content-Length", "Content-Type", "X-Content-Type-Options"}

func (f *referee) checkHeaders(t *testing.T, name string, o *openapi3.Operation, w *httptest.ResponseRecorder) {
	t.Helper()
	described := o.Responses.Status(w.Code)
	if described == nil {
		return // judged already
	}
	for _, header := range slices.Sorted(maps.Keys(w.Header())) {
		there := slices.ContainsFunc(slices.Collect(maps.Keys(described.Value.Headers)), func(h string) bool { return strings.EqualFold(h, header) })
		if !there && !slices.Contains(ordinaryHeaders, header) {
			t.Errorf("%s: the header %s: %s of a %d is not described", name, header, w.Header().Get(header), w.Code)
		}
	}
}

// What is refused with one of these, the specification forbids to send. The others depend on data, or on more than a
// schema can say.
var forbidden = []string{"idempotency-key-missing", "idempotency-key-invalid", "malformed-json", "unknown-field", "invalid-field", "invalid-amount"}

func (f *referee) checkRequest(t *testing.T, name string, input *openapi3filter.RequestValidationInput, code string) {
	t.Helper()
	err := openapi3filter.ValidateRequest(t.Context(), input)
	refused := slices.Contains(forbidden, code)
	switch {
	case refused && err == nil:
		t.Errorf("%s: refused with %s, although the specification allows it", name, code)
	case code == "" && err != nil:
		t.Errorf("%s: accepted, although the specification forbids it: %v", name, err)
	}
}

// complete complains of documented answers that no call has had.
func (f *referee) complete(t *testing.T) {
	t.Helper()
	for _, a := range documentedAnswers(t) {
		if !f.seen[a] {
			t.Errorf("%s is documented to answer %d %s, and was never seen to", a.operation, a.status, a.code)
		}
	}
}
