package httpapi

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

// Why a parser of our own: encoding/json accepts duplicate and other-case members, trailing bytes, invalid UTF-8 and
// lone surrogates, and the last two only show when Postgres refuses the text. A client whose JSON we read otherwise than it
// meant it would pay the wrong amount. This one accepts less than encoding/json, and what it accepts means the same.
const (
	maxDepth  = 32
	maxTokens = 1000 // values and member names
)

type valueKind byte

const (
	nullValue valueKind = iota
	boolValue
	numberValue
	stringValue
	arrayValue
	objectValue
)

// value is a JSON value as it was written: the order of members and the digits of numbers are kept.
type value struct {
	kind    valueKind
	text    string // of a string: decoded; of a number or boolean: as written
	items   []value
	members []member
}

type member struct {
	name  string
	value value
}

// parseObject reads a body that must be one JSON object and nothing else.
func parseObject(src []byte) ([]member, error) {
	for _, bom := range [][]byte{{0xEF, 0xBB, 0xBF}, {0xFE, 0xFF}, {0xFF, 0xFE}} {
		if bytes.HasPrefix(src, bom) {
			return nil, refuse("malformed-json", "The body begins with a byte order mark; send UTF-8 without one.")
		}
	}
	p := parser{src: src}
	p.space()
	if p.pos == len(src) {
		return nil, refuse("malformed-json", "The body is empty.")
	}
	v, err := p.value(0)
	if err != nil {
		return nil, err
	}
	if p.space(); p.pos != len(src) {
		return nil, p.malformed("something follows the JSON value")
	}
	if v.kind != objectValue {
		return nil, refuse("malformed-json", "The body must be a JSON object.")
	}
	return v.members, nil
}

type parser struct {
	src    []byte
	pos    int
	tokens int
}

func (p *parser) malformed(what string) error {
	if p.pos >= len(p.src) {
		return refuse("malformed-json", "The JSON ends too early, after %d bytes.", len(p.src))
	}
	return refuse("malformed-json", "The JSON is malformed at byte %d: %s.", p.pos, what)
}

func (p *parser) space() {
	for p.pos < len(p.src) && (p.src[p.pos] == ' ' || p.src[p.pos] == '\t' || p.src[p.pos] == '\n' || p.src[p.pos] == '\r') {
		p.pos++
	}
}

// next returns the byte at hand, 0 at the end: no rule of the grammar begins with 0.
func (p *parser) next() byte {
	if p.pos < len(p.src) {
		return p.src[p.pos]
	}
	return 0
}

func (p *parser) accept(c byte) bool {
	if p.next() != c {
		return false
	}
	p.pos++
	return true
}

func (p *parser) token() error {
	if p.tokens++; p.tokens > maxTokens {
		return refuse("malformed-json", "The JSON has more than %d values and names.", maxTokens)
	}
	return nil
}

// value reads a value with depth objects and arrays around it.
func (p *parser) value(depth int) (value, error) {
	if err := p.token(); err != nil {
		return value{}, err
	}
	switch c := p.next(); {
	case (c == '{' || c == '[') && depth == maxDepth:
		return value{}, refuse("malformed-json", "The JSON is nested more than %d deep.", maxDepth)
	case c == '{':
		return p.object(depth)
	case c == '[':
		return p.array(depth)
	case c == '"':
		s, err := p.string()
		return value{kind: stringValue, text: s}, err
	case c == '-' || isDigit(c):
		return p.number()
	case p.word("true"):
		return value{kind: boolValue, text: "true"}, nil
	case p.word("false"):
		return value{kind: boolValue, text: "false"}, nil
	case p.word("null"):
		return value{kind: nullValue}, nil
	}
	return value{}, p.malformed("a value should begin here")
}

func (p *parser) word(w string) bool {
	if !bytes.HasPrefix(p.src[p.pos:], []byte(w)) {
		return false
	}
	p.pos += len(w)
	return true
}

func (p *parser) object(depth int) (value, error) {
	v := value{kind: objectValue}
	p.pos++
	if p.space(); p.accept('}') {
		return v, nil
	}
	for {
		m, err := p.member(depth)
		if err != nil {
			return v, err
		}
		for _, other := range v.members {
			if other.name == m.name {
				return v, refuse("duplicate-member", "The member %q stands there twice: it is not clear which one is meant.", short(m.name))
			}
		}
		v.members = append(v.members, m)
		p.space()
		switch {
		case p.accept(','):
			p.space()
		case p.accept('}'):
			return v, nil
		default:
			return v, p.malformed("a comma or a closing brace should stand here")
		}
	}
}

func (p *parser) member(depth int) (m member, err error) {
	if p.next() != '"' {
		return m, p.malformed("the name of a member should begin here")
	}
	if err = p.token(); err != nil {
		return m, err
	}
	if m.name, err = p.string(); err != nil {
		return m, err
	}
	if p.space(); !p.accept(':') {
		return m, p.malformed("a colon should stand here")
	}
	p.space()
	m.value, err = p.value(depth + 1)
	return m, err
}

func (p *parser) array(depth int) (value, error) {
	v := value{kind: arrayValue}
	p.pos++
	if p.space(); p.accept(']') {
		return v, nil
	}
	for {
		item, err := p.value(depth + 1)
		if err != nil {
			return v, err
		}
		v.items = append(v.items, item)
		p.space()
		switch {
		case p.accept(','):
			p.space()
		case p.accept(']'):
			return v, nil
		default:
			return v, p.malformed("a comma or a closing bracket should stand here")
		}
	}
}

func (p *parser) number() (value, error) {
	start := p.pos
	p.accept('-')
	if !p.accept('0') && !p.digits() {
		return value{}, p.malformed("a digit should stand here")
	}
	if p.accept('.') && !p.digits() {
		return value{}, p.malformed("a digit should stand here")
	}
	if p.accept('e') || p.accept('E') {
		if !p.accept('+') {
			p.accept('-')
		}
		if !p.digits() {
			return value{}, p.malformed("a digit should stand here")
		}
	}
	return value{kind: numberValue, text: string(p.src[start:p.pos])}, nil
}

func (p *parser) digits() bool {
	start := p.pos
	for isDigit(p.next()) {
		p.pos++
	}
	return p.pos > start
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func (p *parser) string() (string, error) {
	p.pos++
	var b []byte
	for p.pos < len(p.src) {
		switch c := p.src[p.pos]; {
		case c == '"':
			p.pos++
			return string(b), nil
		case c == 0:
			return "", p.encoding("U+0000 is not text")
		case c < ' ':
			return "", p.malformed("a control character in a string must be escaped")
		case c == '\\':
			r, err := p.escape()
			if err != nil {
				return "", err
			}
			b = utf8.AppendRune(b, r)
		case c < utf8.RuneSelf:
			b = append(b, c)
			p.pos++
		default:
			r, size := utf8.DecodeRune(p.src[p.pos:])
			if r == utf8.RuneError && size == 1 {
				return "", p.encoding("it is not UTF-8")
			}
			b = append(b, p.src[p.pos:p.pos+size]...)
			p.pos += size
		}
	}
	return "", p.malformed("")
}

func (p *parser) encoding(what string) error {
	return refuse("invalid-encoding", "The text is invalid at byte %d: %s.", p.pos, what)
}

var escapes = map[byte]rune{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

func (p *parser) escape() (rune, error) {
	p.pos++ // the backslash
	c := p.next()
	if r, ok := escapes[c]; ok {
		p.pos++
		return r, nil
	}
	if c != 'u' {
		return 0, p.malformed("no such escape")
	}
	r, ok := p.hex()
	if !ok {
		return 0, p.malformed("\\u needs four hexadecimal digits")
	}
	if r == 0 {
		return 0, p.encoding("U+0000 is not text")
	}
	if !utf16.IsSurrogate(r) {
		return r, nil
	}
	if p.accept('\\') && p.next() == 'u' {
		if low, ok := p.hex(); ok {
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				return pair, nil
			}
		}
	}
	return 0, p.encoding("a surrogate stands alone")
}

// hex reads uXXXX.
func (p *parser) hex() (r rune, ok bool) {
	p.pos++
	for range 4 {
		c := p.next()
		switch {
		case isDigit(c):
			r = r<<4 | rune(c-'0')
		case 'a' <= c && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case 'A' <= c && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
		p.pos++
	}
	return r, true
}
