package strictjson_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/oncepay/oncepay/internal/strictjson"
)

// Everything the parser accepts, encoding/json accepts with the same values.
func FuzzParseObject(f *testing.F) {
	for _, seed := range []string{
		`{}`, `[]`, ``, `{"a":1,"a":2}`, `{"a":[1,-0.5e+3,true,false,null,"x",{}]}`,
		`{"a":"\ud83d\ude00"}`, `{"a":"\ud83d"}`, "{\"a\":\"\xff\"}", `{"a":"\u0000"}`, "\ufeff{}",
		`{"a":01}`, `{"a":1}x`, strings.Repeat(`{"a":`, 40), `{"a":"\"\\\/\b\f\n\r\t"}`,
	} {
		f.Add([]byte(seed))
	}

	f.Fuzz(func(t *testing.T, body []byte) {
		members, err := strictjson.ParseObject(body)
		if err != nil {
			return
		}

		var want map[string]any
		d := json.NewDecoder(strings.NewReader(string(body)))
		d.UseNumber()
		if err := d.Decode(&want); err != nil {
			t.Fatalf("accepted %q, encoding/json says %v", body, err)
		}
		got := plain(strictjson.Value{Kind: strictjson.Object, Members: members})
		if diff := cmp.Diff(any(want), got); diff != "" {
			t.Errorf("%q: %s", body, diff)
		}
	})
}

// plain converts a value to what encoding/json decodes it to with UseNumber.
func plain(v strictjson.Value) any {
	switch v.Kind {
	case strictjson.Bool:
		return v.Text == "true"
	case strictjson.Number:
		return json.Number(v.Text)
	case strictjson.String:
		return v.Text
	case strictjson.Array:
		items := []any{}
		for _, item := range v.Items {
			items = append(items, plain(item))
		}
		return items
	case strictjson.Object:
		members := map[string]any{}
		for _, m := range v.Members {
			members[m.Name] = plain(m.Value)
		}
		return members
	case strictjson.Null:
	}
	return nil
}

func TestParseObjectErrors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ src, want string }{
		"empty":          {" ", "empty input"},
		"mark":           {"\ufeff{}", "unexpected byte order mark"},
		"scalar":         {"1", "expected an object"},
		"trailing":       {"{} x", "unexpected data after the JSON value at byte 3"},
		"cut off":        {`{"a":`, "unexpected end of input after 5 bytes"},
		"open string":    {`{"a`, "unexpected end of input after 3 bytes"},
		"no comma":       {`{"a":1 "b":2}`, "expected ',' or '}' at byte 7"},
		"no bracket":     {`{"a":[1}`, "expected ',' or ']' at byte 7"},
		"no name":        {`{a:1}`, "expected a member name in quotes at byte 1"},
		"no colon":       {`{"a" 1}`, "expected ':' at byte 5"},
		"no value":       {`{"a":}`, "expected a value at byte 5"},
		"no digit":       {`{"a":-}`, "expected a digit at byte 6"},
		"escape":         {`{"a":"\x"}`, "unknown escape sequence at byte 7"},
		"hexadecimal":    {`{"a":"\u00g0"}`, `expected four hexadecimal digits after \u at byte 10`},
		"control":        {"{\"a\":\"\n\"}", "unescaped control character in a string at byte 6"},
		"nesting":        {strings.Repeat(`{"a":`, 33), "nested more than 32 levels deep"},
		"tokens":         {`{"a":[` + strings.Repeat("1,", 1000) + `1]}`, "more than 1000 values and names"},
		"not UTF-8":      {"{\"a\":\"\xff\"}", "invalid text at byte 6: not UTF-8"},
		"half a pair":    {`{"a":"\ud83d"}`, "invalid text at byte 12: unpaired surrogate"},
		"NUL":            {`{"a":"\u0000"}`, "invalid text at byte 12: U+0000 is not allowed"},
		"duplicate":      {`{"a":1,"\u0061":2}`, `duplicate member "a"`},
		"duplicate deep": {`{"x":{"a":1,"a":2}}`, `duplicate member "a"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := strictjson.ParseObject([]byte(c.src))
			if err == nil || err.Error() != c.want {
				t.Fatalf("got %v, want %s", err, c.want)
			}

			var syntax *strictjson.SyntaxError
			var encoding *strictjson.EncodingError
			var duplicate *strictjson.DuplicateError
			if !errors.As(err, &syntax) && !errors.As(err, &encoding) && !errors.As(err, &duplicate) {
				t.Errorf("%T is none of the documented errors", err)
			}
		})
	}
}
