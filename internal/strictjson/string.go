package strictjson

import (
	"unicode/utf16"
	"unicode/utf8"
)

func (p *parser) string() (string, error) {
	var b []byte

	p.pos++ // the opening quote
	for p.pos < len(p.src) {
		switch c := p.src[p.pos]; {
		case c == '"':
			p.pos++
			return string(b), nil
		case c == 0:
			return "", p.encoding("U+0000 is not allowed")
		case c < ' ':
			return "", p.syntax("unescaped control character in a string")
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
			// RuneError of one byte is not the character U+FFFD, which has three.
			r, size := utf8.DecodeRune(p.src[p.pos:])
			if r == utf8.RuneError && size == 1 {
				return "", p.encoding("not UTF-8")
			}
			b = append(b, p.src[p.pos:p.pos+size]...)
			p.pos += size
		}
	}

	return "", p.syntax("")
}

func (p *parser) encoding(detail string) error { return &EncodingError{p.pos, detail} }

var escapes = map[byte]rune{
	'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t',
}

func (p *parser) escape() (rune, error) {
	p.pos++ // the backslash
	c := p.next()
	if r, ok := escapes[c]; ok {
		p.pos++
		return r, nil
	}

	// Four digits are half of a character beyond the 65,536 that they can name.
	if c != 'u' {
		return 0, p.syntax("unknown escape sequence")
	}

	r, ok := p.hex()
	if !ok {
		return 0, p.syntax(`expected four hexadecimal digits after \u`)
	}

	if r == 0 {
		return 0, p.encoding("U+0000 is not allowed")
	}
	if !utf16.IsSurrogate(r) {
		return r, nil
	}

	// A surrogate is only valid as the first half of a pair.
	if p.accept('\\') && p.next() == 'u' {
		if low, ok := p.hex(); ok {
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				return pair, nil
			}
		}
	}
	return 0, p.encoding("unpaired surrogate")
}

// hex parses uXXXX.
func (p *parser) hex() (r rune, ok bool) {
	p.pos++ // the u
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
