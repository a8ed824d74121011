package credentials_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"log/slog"
	"regexp"
	"strings"
	"testing"

	"github.com/oncepay/oncepay/internal/credentials"
)

// example is a token whose checksum was made by another program.
const example = "oncepay_0123456789abcdef_ABCDEFGHIJKLMNOPQRSTUVWXYZ0123453HjhFL"

func TestParseReadsWhatRevealWrites(t *testing.T) {
	t.Parallel()
	token, ok := credentials.Parse(example)
	if !ok {
		t.Fatal("refused")
	}
	if token.ID() != "0123456789abcdef" || token.Reveal() != example {
		t.Errorf("id %s, token %s", token.ID(), token.Reveal())
	}
}

func TestParseRejectsEveryOtherSpelling(t *testing.T) {
	t.Parallel()
	// With a right checksum each, or the checksum alone would do the refusing.
	body := func(s string) string { return s + base62CRC(s) }
	wrong := []string{
		"", "oncepay_", "Bearer " + example, example + " ", " " + example, example + "0", example[:len(example)-1],
		strings.ToUpper(example), "oncepay-" + example[8:],
		body("oncepay_0123456789abcde-_ABCDEFGHIJKLMNOPQRSTUVWXYZ012345"),
		body("oncepay_0123456789abcdef_ABCDEFGHIJKLMNOPQRSTUVWXYZ01234\x00"),
		body("oncepay_0123456789abcdef_ABCDEFGHIJKLMNOPQRSTUVWXYZ0123é"),
		body("oncepay_0123456789abcdef-ABCDEFGHIJKLMNOPQRSTUVWXYZ012345"),
		body("oncepal_0123456789abcdef_ABCDEFGHIJKLMNOPQRSTUVWXYZ012345"),
		body("oncepay_0123456789abcdef_ABCDEFGHIJKLMNOPQRSTUVWXYZ01234"),
	}
	for i := range example { // one mistyped character, wherever it is
		c := byte('7')
		if example[i] == c {
			c = '8'
		}
		wrong = append(wrong, example[:i]+string(c)+example[i+1:])
	}
	for _, s := range wrong {
		if _, ok := credentials.Parse(s); ok {
			t.Errorf("%q was accepted", s)
		}
	}
	if _, ok := credentials.Parse(body(example[:len(example)-6])); !ok {
		t.Error("the test's own checksum is wrong")
	}
}

func TestSecretScannerPatternMatchesToken(t *testing.T) {
	t.Parallel()
	pattern := regexp.MustCompile(`\boncepay_[0-9A-Za-z]{16}_[0-9A-Za-z]{38}\b`)
	if got := pattern.FindString(`token = "` + example + `"`); got != example {
		t.Errorf("found %q", got)
	}
}

func TestPrintedTokenHidesItsSecret(t *testing.T) {
	t.Parallel()
	token, _ := credentials.Parse(example)
	type holder struct {
		Shown  credentials.Token
		hidden credentials.Token // fmt does not ask the methods of this one
	}
	h := holder{token, token}
	printed := []string{token.String(), fmt.Sprint(h, &h)}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%p", "%08b"} {
		printed = append(printed, fmt.Sprintf(verb, token), fmt.Sprintf(verb, &token), fmt.Sprintf(verb, h), fmt.Sprintf(verb, []credentials.Token{token}))
	}
	encoded, err := json.Marshal(map[string]any{"token": token, "holder": h})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).InfoContext(t.Context(), "x", "token", token, "holder", h)
	slog.New(slog.NewTextHandler(&log, nil)).InfoContext(t.Context(), "x", "token", token, "holder", h)
	printed = append(printed, string(encoded), log.String())

	for _, s := range printed {
		if strings.Contains(s, "ABCDEFG") || strings.Contains(strings.ToLower(s), "41424344") || strings.Contains(s, "65 66 67") {
			t.Errorf("%s shows the secret", s)
		}
	}
	if got := token.String(); got != "oncepay_0123456789abcdef_[redacted]" {
		t.Errorf("String() = %s", got)
	}
	if got := string(encoded); !strings.Contains(got, token.ID()) {
		t.Errorf("%s does not show the id", got)
	}
}

func TestZeroTokenPrintsAndIsInvalid(t *testing.T) {
	t.Parallel()
	var token credentials.Token
	if _, ok := credentials.Parse(token.Reveal()); ok || fmt.Sprint(token) != "oncepay__[redacted]" {
		t.Errorf("%v, %q", token, token.Reveal())
	}
}

func FuzzParse(f *testing.F) {
	f.Add(example)
	f.Add("oncepay_")
	f.Fuzz(func(t *testing.T, s string) {
		if token, ok := credentials.Parse(s); ok && token.Reveal() != s {
			t.Errorf("%q is read as %q", s, token.Reveal())
		}
	})
}

func base62CRC(s string) string {
	const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	n, out := crc32.ChecksumIEEE([]byte(s)), ""
	for range 6 {
		out, n = string(digits[n%62])+out, n/62
	}
	return out
}
