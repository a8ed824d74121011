package httpapi

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/strictjson"
)

// fields takes the members of a body one by one and collects everything that is wrong with them, so
// that a client sees all its mistakes at once.
type fields struct {
	members []strictjson.Member
	taken   map[string]bool // members that were read; the others are unknown
	errors  []fieldError
}

func newFields(body []byte) (*fields, error) {
	members, err := strictjson.ParseObject(body)
	if err != nil {
		return nil, malformed(err)
	}
	return &fields{members: members, taken: map[string]bool{}}, nil
}

// malformed turns an error of the parser into its problem.
func malformed(err error) error {
	var duplicate *strictjson.DuplicateError
	var encoding *strictjson.EncodingError
	switch {
	case errors.As(err, &duplicate):
		return refuse("duplicate-member", "The member %q appears twice.", short(duplicate.Name))
	case errors.As(err, &encoding):
		return refuse("invalid-encoding", "%s.", sentence(err))
	}
	return refuse("malformed-json", "The body is not a valid JSON object: %s.", err)
}

// err returns a problem with all mistakes, or nil. Unknown members come first: they often explain
// why another is missing.
func (f *fields) err() error {
	var all []fieldError
	for _, m := range f.members {
		if !f.taken[m.Name] {
			detail := f.unknown(m.Name)
			all = append(all, fieldError{Pointer: pointer(m.Name), Code: "unknown-field", Detail: detail})
		}
	}
	all = append(all, f.errors...)
	if len(all) == 0 {
		return nil
	}

	// The first mistake is the problem itself, errors has all of them.
	p := refuse(all[0].Code, "%s", all[0].Detail)
	if n := len(all) - 1; n > 0 {
		p.Detail += fmt.Sprintf(" %d more: see errors.", n)
	}
	p.Errors = all[:min(len(all), maxErrors)]
	return p
}

func (f *fields) unknown(name string) string {
	name = short(name)

	// encoding/json and others like it accept another case, so clients send it.
	for known := range f.taken {
		if strings.EqualFold(name, known) {
			return fmt.Sprintf("%q is not a member of this request; did you mean %q?", name, known)
		}
	}
	return fmt.Sprintf("%q is not a member of this request.", name)
}

func (f *fields) fail(code, detail string, path ...string) {
	f.errors = append(f.errors, fieldError{Pointer: pointer(path...), Code: code, Detail: detail})
}

// get returns a member and whether it is present.
func (f *fields) get(name string) (strictjson.Value, bool) {
	f.taken[name] = true
	for _, m := range f.members {
		if m.Name == name {
			return m.Value, true
		}
	}
	return strictjson.Value{}, false
}

// optionalAmount returns zero if neither the member nor a mistaken "amount" is there.
func (f *fields) optionalAmount(name string) int64 {
	_, there := f.get(name)
	_, other := f.get("amount")
	if !there && !other {
		return 0
	}
	return f.amount(name)
}

// amount reads an amount in minor units. A client that sends "amount" counts differently, and is
// told so.
func (f *fields) amount(name string) int64 {
	v, there := f.get(name)

	// Taken even if amount_minor is there too: two amounts would leave the choice to us.
	if _, other := f.get("amount"); other {
		f.fail("invalid-amount", "Use amount_minor, an integer in minor units of the currency: "+
			`250.00 USD is "amount_minor": 25000.`, "amount")
		if !there {
			return 0
		}
	}

	// Only digits: 1.0 and 1e2 are integers to some parsers only.
	n, err := strconv.ParseInt(v.Text, 10, 64)
	if v.Kind != strictjson.Number || err != nil || n < 1 || n > payments.MaxAmount {
		f.fail("invalid-amount", fmt.Sprintf("%s must be an integer from 1 to %d, "+
			"in minor units of the currency: 250.00 USD is 25000.", name, int64(payments.MaxAmount)), name)
	}
	return n
}

// The values of capture: when a payment's money moves.
const (
	captureAutomatic = "automatic" // at once
	captureManual    = "manual"    // when it is captured; until then it is held
)

// authorization reads capture and authorization_seconds, and returns how long the money is held;
// zero: not at all.
func (f *fields) authorization(least time.Duration) time.Duration {
	mode, modeThere := f.get("capture")
	length, lengthThere := f.get("authorization_seconds")
	manual := modeThere && mode.Kind == strictjson.String && mode.Text == captureManual

	if modeThere && !manual && (mode.Kind != strictjson.String || mode.Text != captureAutomatic) {
		f.fail("invalid-field", "capture must be automatic or manual.", "capture")
		return 0
	}
	switch {
	case !manual && lengthThere:
		f.fail("invalid-field", "authorization_seconds needs capture to be manual: "+
			"otherwise the money moves at once.", "authorization_seconds")
		return 0
	case !manual:
		return 0
	case !lengthThere:
		return payments.DefaultAuthorization
	}

	// Only digits, as in an amount.
	low, high := int64((least+time.Second-1)/time.Second), int64(payments.MaxAuthorization/time.Second)
	n, err := strconv.ParseInt(length.Text, 10, 64)
	if length.Kind != strictjson.Number || err != nil || n < low || n > high {
		f.fail("invalid-field", fmt.Sprintf("authorization_seconds must be an integer from %d to %d.",
			low, high), "authorization_seconds")
		return 0
	}
	return time.Duration(n) * time.Second
}

func (f *fields) currency(name string) string {
	s, ok := f.required(name)
	if ok && !payments.KnownCurrency(s) {
		f.fail("invalid-currency",
			name+" must be an ISO 4217 currency code in capital letters, such as USD.", name)
	}
	return s
}

func (f *fields) account(name string) uuid.UUID {
	s, ok := f.required(name)
	if !ok {
		return uuid.Nil
	}

	id, ok := canonicalID(s)
	if !ok {
		f.fail("invalid-field",
			name+" must be an account id, a UUID in lower case with hyphens.", name)
	}
	return id
}

// canonicalID parses a UUID in the only form that the API writes, so that no account has two names.
func canonicalID(s string) (uuid.UUID, bool) {
	id, err := uuid.Parse(s)
	return id, err == nil && id.String() == s
}

func (f *fields) required(name string) (string, bool) {
	v, there := f.get(name)
	switch {
	case !there:
		f.fail("invalid-field", name+" is missing.", name)
	case v.Kind != strictjson.String:
		f.fail("invalid-field", name+" must be a string.", name)
	default:
		return v.Text, true
	}
	return "", false
}

// text reads an optional string of at most limit characters. breaks allows line feeds and tabs.
func (f *fields) text(name string, limit int, breaks bool) string {
	v, there := f.get(name)
	if !there {
		return ""
	}

	f.check(v, limit, breaks, name)
	return v.Text
}

func (f *fields) check(v strictjson.Value, limit int, breaks bool, path ...string) {
	name := strings.Join(shortAll(path), ".")
	forbidden := func(r rune) bool {
		return unicode.IsControl(r) && (!breaks || r != '\n' && r != '\t')
	}

	switch {
	case v.Kind != strictjson.String:
		f.fail("invalid-field", name+" must be a string; omit it instead of sending null.", path...)
	case utf8.RuneCountInString(v.Text) > limit:
		f.fail("invalid-field",
			fmt.Sprintf("%s must not be longer than %d characters.", name, limit), path...)
	case strings.ContainsFunc(v.Text, forbidden):
		f.fail("invalid-field", name+" must not contain control characters.", path...)
	}
}

// Limits of metadata, which is for references into other systems, not for documents.
const (
	maxMetadata      = 20
	maxMetadataKey   = 40
	maxMetadataValue = 500
)

func (f *fields) metadata(name string) map[string]string {
	pairs := map[string]string{}
	v, there := f.get(name)

	switch {
	case !there:
		return pairs
	case v.Kind != strictjson.Object:
		f.fail("invalid-field", name+" must be an object of strings.", name)
		return pairs
	case len(v.Members) > maxMetadata:
		f.fail("invalid-field",
			fmt.Sprintf("%s must not have more than %d members.", name, maxMetadata), name)
		return pairs
	}

	for _, m := range v.Members {
		if m.Name == "" {
			f.fail("invalid-field", name+" has a member with an empty name.", name, m.Name)
		}

		// One mistake per member is enough: its value is checked if its name is good.
		before, key := len(f.errors), strictjson.Value{Kind: strictjson.String, Text: m.Name}
		f.check(key, maxMetadataKey, false, name, m.Name)
		if len(f.errors) == before {
			f.check(m.Value, maxMetadataValue, false, name, m.Name)
		}
		pairs[m.Name] = m.Value.Text
	}
	return pairs
}

// Limits on what is quoted back from a request. Without them a name of 64 KiB, or thousands of
// short ones, would make an answer many times larger than the request.
const (
	maxErrors = 50
	maxQuoted = 64 // characters
	maxPath   = 1 << 10
)

// short cuts a name chosen by the client to maxQuoted characters.
func short(name string) string {
	n := 0

	for i := range name { // by character
		if n == maxQuoted {
			return name[:i] + "…"
		}
		n++
	}
	return name
}

func shortAll(names []string) []string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = short(name)
	}
	return all
}

// pointer returns a JSON Pointer as a URI fragment. Names too long to be quoted are cut here too:
// no member of ours is that long.
func pointer(path ...string) string {
	escape := strings.NewReplacer("~", "~0", "/", "~1")

	var b strings.Builder
	b.WriteByte('#')
	for _, p := range shortAll(path) {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(escape.Replace(p)))
	}
	return b.String()
}
