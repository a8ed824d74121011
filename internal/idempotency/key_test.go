package idempotency_test

import (
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/idempotency"
)

func TestParseKey(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", idempotency.MaxKeyLength)
	for name, c := range map[string]struct {
		lines []string
		key   string
		err   error
	}{
		"bare":                         {lines: []string{"8e03978e-40d5"}, key: "8e03978e-40d5"},
		"quoted is the same key":       {lines: []string{`"8e03978e-40d5"`}, key: "8e03978e-40d5"},
		"bare, all that is allowed":    {lines: []string{"!#$%&'()*+-./09:<=>?@AZ[]^_`az{|}~"}, key: "!#$%&'()*+-./09:<=>?@AZ[]^_`az{|}~"},
		"quoted comma and semicolon":   {lines: []string{`"a,b;c"`}, key: "a,b;c"},
		"quoted escapes":               {lines: []string{`"a\"b\\c"`}, key: `a"b\c`},
		"one character":                {lines: []string{"k"}, key: "k"},
		"255 characters":               {lines: []string{long}, key: long},
		"255 characters, quoted":       {lines: []string{`"` + long + `"`}, key: long},
		"255 characters, all escaped":  {lines: []string{`"` + strings.Repeat(`\\`, 255) + `"`}, key: strings.Repeat(`\`, 255)},
		"no header":                    {err: idempotency.ErrKeyMissing},
		"empty":                        {lines: []string{""}, err: idempotency.ErrKeyInvalid},
		"empty, quoted":                {lines: []string{`""`}, err: idempotency.ErrKeyInvalid},
		"256 characters":               {lines: []string{long + "k"}, err: idempotency.ErrKeyInvalid},
		"256 characters, quoted":       {lines: []string{`"` + long + `k"`}, err: idempotency.ErrKeyInvalid},
		"two lines":                    {lines: []string{"a", "b"}, err: idempotency.ErrKeyInvalid},
		"two lines that agree":         {lines: []string{"a", "a"}, err: idempotency.ErrKeyInvalid},
		"a list":                       {lines: []string{"a,b"}, err: idempotency.ErrKeyInvalid},
		"a list of strings":            {lines: []string{`"a", "b"`}, err: idempotency.ErrKeyInvalid},
		"a parameter":                  {lines: []string{`"a";v=1`}, err: idempotency.ErrKeyInvalid},
		"a bare parameter":             {lines: []string{`a;v=1`}, err: idempotency.ErrKeyInvalid},
		"a blank":                      {lines: []string{"a b"}, err: idempotency.ErrKeyInvalid},
		"a blank, quoted":              {lines: []string{`"a b"`}, err: idempotency.ErrKeyInvalid},
		"only a blank":                 {lines: []string{" "}, err: idempotency.ErrKeyInvalid},
		"a blank behind the quote":     {lines: []string{`"a" `}, err: idempotency.ErrKeyInvalid},
		"a tab":                        {lines: []string{"a\tb"}, err: idempotency.ErrKeyInvalid},
		"a NUL":                        {lines: []string{"a\x00b"}, err: idempotency.ErrKeyInvalid},
		"a NUL, quoted":                {lines: []string{"\"a\x00b\""}, err: idempotency.ErrKeyInvalid},
		"DEL":                          {lines: []string{"a\x7f"}, err: idempotency.ErrKeyInvalid},
		"non-ASCII":                    {lines: []string{"clé"}, err: idempotency.ErrKeyInvalid},
		"non-ASCII, quoted":            {lines: []string{`"clé"`}, err: idempotency.ErrKeyInvalid},
		"invalid UTF-8":                {lines: []string{"a\xff"}, err: idempotency.ErrKeyInvalid},
		"no closing quote":             {lines: []string{`"a`}, err: idempotency.ErrKeyInvalid},
		"only a quote":                 {lines: []string{`"`}, err: idempotency.ErrKeyInvalid},
		"an escaped closing quote":     {lines: []string{`"a\"`}, err: idempotency.ErrKeyInvalid},
		"an escape of something else":  {lines: []string{`"a\n"`}, err: idempotency.ErrKeyInvalid},
		"an escape at the end":         {lines: []string{`"a\`}, err: idempotency.ErrKeyInvalid},
		"a quote inside a bare key":    {lines: []string{`a"b`}, err: idempotency.ErrKeyInvalid},
		"a backslash in a bare key":    {lines: []string{`a\b`}, err: idempotency.ErrKeyInvalid},
		"two strings without anything": {lines: []string{`"a""b"`}, err: idempotency.ErrKeyInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := http.Header{}
			for _, line := range c.lines {
				h.Add("idempotency-key", line)
			}
			key, err := idempotency.ParseKey(h)
			if key != c.key || !errors.Is(err, c.err) {
				t.Errorf("got %q, %v; want %q, %v", key, err, c.key, c.err)
			}
		})
	}
}

func FuzzParseKey(f *testing.F) {
	for _, seed := range []string{"k", `"k"`, `"a\"b\\c"`, `"a,b"`, "a,b", `""`, "", " ", "\x00", "é", `"a";v=1`, strings.Repeat("k", 256)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		key, err := idempotency.ParseKey(http.Header{idempotency.Header: {line}})
		if err != nil {
			if !errors.Is(err, idempotency.ErrKeyInvalid) || key != "" {
				t.Fatalf("%q: %q, %v", line, key, err)
			}
			return
		}
		if len(key) < 1 || len(key) > idempotency.MaxKeyLength {
			t.Fatalf("%q: a key of %d characters", line, len(key))
		}
		for _, c := range []byte(key) {
			if c < '!' || c > '~' {
				t.Fatalf("%q: %q is not visible ASCII", line, c)
			}
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		if same, err := idempotency.ParseKey(http.Header{idempotency.Header: {quoted}}); same != key || err != nil {
			t.Fatalf("%q gives %q, quoted again %q, %v", line, key, same, err)
		}
	})
}

func TestFingerprintCoversEveryPart(t *testing.T) {
	t.Parallel()
	one, two := uuid.MustParse("00000000-0000-7000-8000-000000000001"), uuid.MustParse("00000000-0000-7000-8000-000000000002")
	type parts struct {
		tenant        uuid.UUID
		method, route string
		params        []string
		command       string
	}
	seen := map[[32]byte]string{}
	for name, p := range map[string]parts{
		"as it is":                           {one, "POST", "/a/{id}", []string{"x"}, "{}"},
		"another tenant":                     {two, "POST", "/a/{id}", []string{"x"}, "{}"},
		"another method":                     {one, "PATCH", "/a/{id}", []string{"x"}, "{}"},
		"another route":                      {one, "POST", "/b/{id}", []string{"x"}, "{}"},
		"another parameter":                  {one, "POST", "/a/{id}", []string{"y"}, "{}"},
		"another command":                    {one, "POST", "/a/{id}", []string{"x"}, "[]"},
		"no command":                         {one, "POST", "/a/{id}", []string{"x"}, ""},
		"no parameter":                       {one, "POST", "/a/{id}", nil, "{}"},
		"an empty parameter":                 {one, "POST", "/a/{id}", []string{""}, "{}"},
		"two parameters":                     {one, "POST", "/a/{id}", []string{"x", "y"}, "{}"},
		"two parameters, otherwise parted":   {one, "POST", "/a/{id}", []string{"xy", ""}, "{}"},
		"two parameters, in the other order": {one, "POST", "/a/{id}", []string{"y", "x"}, "{}"},
		"a letter moved from method":         {one, "POS", "T/a/{id}", []string{"x"}, "{}"},
		"a letter moved from route":          {one, "POST", "/a/{id", []string{"}x"}, "{}"},
		"a letter moved from the parameter":  {one, "POST", "/a/{id}", []string{""}, "x{}"},
		"the command as a parameter":         {one, "POST", "/a/{id}", []string{"x", "{}"}, ""},
	} {
		f := idempotency.NewFingerprint(p.tenant, p.method, p.route, p.params, []byte(p.command))
		if other, ok := seen[f.Sum]; ok {
			t.Errorf("%s and %s have the same fingerprint", name, other)
		}
		if f.Version != idempotency.FingerprintVersion || f != idempotency.NewFingerprint(p.tenant, p.method, p.route, p.params, []byte(p.command)) {
			t.Errorf("%s: not the same twice, or of version %d", name, f.Version)
		}
		seen[f.Sum] = name
	}
}

// A stored fingerprint outlives a deploy: this value may change only together with
// FingerprintVersion.
func TestFingerprintIsStable(t *testing.T) {
	t.Parallel()
	f := idempotency.NewFingerprint(uuid.MustParse("00000000-0000-7000-8000-000000000001"), "POST", "/a/{id}", []string{"x"}, []byte("{}"))
	const want = "fd102a010190a3134a440335cca179a59eec0352ca06779532126fed17fb86ec"
	if got := hex.EncodeToString(f.Sum[:]); got != want || f.Version != 1 {
		t.Errorf("version %d, %s", f.Version, got)
	}
}
