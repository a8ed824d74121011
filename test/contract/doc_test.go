// Package contract_test holds api/openapi.yaml, api/asyncapi.yaml and api/events to what the programs do, and the programs
// to them: whoever changes one without the other fails here.
package contract_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/oncepay/oncepay/api"
)

// document is a YAML or JSON document as JSON has it.
type document = map[string]any

func read(t testing.TB, name string) document {
	t.Helper()
	text, err := api.Files.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var d document
	if err := yaml.Unmarshal(text, &d); err != nil { // JSON is YAML
		t.Fatalf("%s: %v", name, err)
	}
	return d
}

// at follows path into d.
func at(t testing.TB, d document, path ...string) document {
	t.Helper()
	for _, p := range path {
		next, ok := d[p].(document)
		if !ok {
			t.Fatalf("%q is missing on the way %q", p, path)
		}
		d = next
	}
	return d
}

// closeObject makes a schema refuse members that it does not describe. Clients must not do that, since members may be
// added; here it finds those that somebody forgot to describe.
func closeObject(schema any) {
	s, ok := schema.(document)
	if !ok || s["properties"] == nil || s["additionalProperties"] != nil {
		return
	}
	s["additionalProperties"] = false
}

// compile makes a JSON Schema of 2020-12 ready for use, formats included.
func compile(t testing.TB, schema document) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	if err := c.AddResource("schema.json", instance(t, encode(t, schema))); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

// instance reads JSON as the validator wants it: with all digits of its numbers.
func instance(t testing.TB, text []byte) any {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
