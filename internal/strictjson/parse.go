package strictjson

import (
	"bytes"
	"fmt"
)

// ParseObject parses src, which must be one JSON object and nothing else. Its error is a
// *SyntaxError, an *EncodingError or a *DuplicateError.
func ParseObject(src []byte) ([]Member, error) {
	// Some parsers skip a mark, and some read what follows in its encoding.
	for _, bom := range [][]byte{{0xEF, 0xBB, 0xBF}, {0xFE, 0xFF}, {0xFF, 0xFE}} {
		if bytes.HasPrefix(src, bom) {
			return nil, &SyntaxError{"unexpected byte order mark"}
		}
	}

	// One value, and nothing behind it.
	p := parser{src: src}
	p.skipSpace()
	if p.pos == len(src) {
		return nil, &SyntaxError{"empty input"}
	}

	v, err := p.value(0)
	if err != nil {
		return nil, err
	}
	if p.skipSpace(); p.pos != len(src) {
		return nil, p.syntax("unexpected data after the JSON value")
	}
	if v.Kind != Object {
		return nil, &SyntaxError{"expected an object"}
	}
	return v.Members, nil
}

type parser struct {
	src    []byte
	pos    int
	tokens int
}

func (p *parser) syntax(detail string) error {
	if p.pos >= len(p.src) {
		return &SyntaxError{fmt.Sprintf("unexpected end of input after %d bytes", len(p.src))}
	}
	return &SyntaxError{fmt.Sprintf("%s at byte %d", detail, p.pos)}
}

func (p *parser) skipSpace() {
	for p.pos < len(p.src) && bytes.IndexByte([]byte(" \t\r\n"), p.src[p.pos]) >= 0 {
		p.pos++
	}
}

// next returns the current byte, or 0 at the end: no rule of the grammar begins with 0.
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

var errTooManyTokens = &SyntaxError{fmt.Sprintf("more than %d values and names", maxTokens)}

func (p *parser) countToken() error {
	if p.tokens++; p.tokens > maxTokens {
		return errTooManyTokens
	}
	return nil
}

// value parses a value nested in depth objects and arrays.
func (p *parser) value(depth int) (Value, error) {
	if err := p.countToken(); err != nil {
		return Value{}, err
	}

	// The first byte tells the kind.
	switch c := p.next(); {
	case (c == '{' || c == '[') && depth == maxDepth:
		return Value{}, &SyntaxError{fmt.Sprintf("nested more than %d levels deep", maxDepth)}
	case c == '{':
		return p.object(depth)
	case c == '[':
		return p.array(depth)
	case c == '"':
		s, err := p.string()
		return Value{Kind: String, Text: s}, err
	case c == '-' || isDigit(c):
		return p.number()
	case p.word("true"):
		return Value{Kind: Bool, Text: "true"}, nil
	case p.word("false"):
		return Value{Kind: Bool, Text: "false"}, nil
	case p.word("null"):
		return Value{Kind: Null}, nil
	}
	return Value{}, p.syntax("expected a value")
}

func (p *parser) word(w string) bool {
	if !bytes.HasPrefix(p.src[p.pos:], []byte(w)) {
		return false
	}
	p.pos += len(w)
	return true
}

func (p *parser) object(depth int) (Value, error) {
	v := Value{Kind: Object}

	err := p.list('}', func() error {
		m, err := p.member(depth)
		if err != nil {
			return err
		}

		// A map would cost more: maxTokens leaves 500 members at most.
		for _, other := range v.Members {
			if other.Name == m.Name {
				return &DuplicateError{m.Name}
			}
		}
		v.Members = append(v.Members, m)
		return nil
	})
	return v, err
}

func (p *parser) member(depth int) (m Member, err error) {
	if p.next() != '"' {
		return m, p.syntax("expected a member name in quotes")
	}

	if err = p.countToken(); err != nil {
		return m, err
	}
	if m.Name, err = p.string(); err != nil {
		return m, err
	}

	// Its value is a level deeper.
	if p.skipSpace(); !p.accept(':') {
		return m, p.syntax("expected ':'")
	}

	p.skipSpace()
	m.Value, err = p.value(depth + 1)
	return m, err
}

func (p *parser) array(depth int) (Value, error) {
	v := Value{Kind: Array}

	err := p.list(']', func() error {
		item, err := p.value(depth + 1)
		v.Items = append(v.Items, item)
		return err
	})
	return v, err
}

// list parses items, separated by commas, up to the closing bracket.
func (p *parser) list(closing byte, item func() error) error {
	p.pos++ // the opening bracket
	if p.skipSpace(); p.accept(closing) {
		return nil
	}

	for {
		if err := item(); err != nil {
			return err
		}

		p.skipSpace()
		switch {
		case p.accept(','):
			p.skipSpace()
		case p.accept(closing):
			return nil
		default:
			return p.syntax(fmt.Sprintf("expected ',' or '%c'", closing))
		}
	}
}

func (p *parser) number() (Value, error) {
	start := p.pos

	// After a leading 0 the integer ends: JSON has no 01.
	p.accept('-')
	if !p.accept('0') && !p.digits() {
		return Value{}, p.syntax("expected a digit")
	}
	if p.accept('.') && !p.digits() {
		return Value{}, p.syntax("expected a digit")
	}
	if p.accept('e') || p.accept('E') {
		if !p.accept('+') {
			p.accept('-')
		}
		if !p.digits() {
			return Value{}, p.syntax("expected a digit")
		}
	}

	return Value{Kind: Number, Text: string(p.src[start:p.pos])}, nil
}

func (p *parser) digits() bool {
	start := p.pos

	for isDigit(p.next()) {
		p.pos++
	}
	return p.pos > start
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
