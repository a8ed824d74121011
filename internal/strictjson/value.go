// Package strictjson parses one JSON object and rejects everything that two parsers may read
// differently.
//
// encoding/json accepts duplicate members, members in another case, trailing bytes, invalid UTF-8
// and lone surrogates; the last two only surface when Postgres rejects the text. If we read a body
// differently from how its sender meant it, we pay the wrong amount. This parser accepts less than
// encoding/json, and reads what it accepts the same way: the fuzz test compares the two.
package strictjson

import "fmt"

// Limits on what is parsed, so that a small body cannot cost much work.
const (
	maxDepth  = 32
	maxTokens = 1000 // values and member names
)

// Kind is the type of a JSON value.
type Kind byte

// The kinds of values. The zero Value is null.
const (
	Null Kind = iota
	Bool
	Number
	String
	Array
	Object
)

// Value is a JSON value. Members keep their order and numbers their digits.
type Value struct {
	Kind    Kind
	Text    string // String: decoded; Number and Bool: as written
	Items   []Value
	Members []Member
}

// Member is one name and value of an object.
type Member struct {
	Name  string
	Value Value
}

// SyntaxError reports that the input is not one well-formed JSON object within the limits.
type SyntaxError struct{ Detail string }

// EncodingError reports text that is not valid Unicode, or that contains U+0000, which Postgres
// cannot store.
type EncodingError struct {
	Offset int
	Detail string
}

// DuplicateError reports an object that names a member twice.
type DuplicateError struct{ Name string }

func (e *SyntaxError) Error() string { return e.Detail }

func (e *EncodingError) Error() string {
	return fmt.Sprintf("invalid text at byte %d: %s", e.Offset, e.Detail)
}

func (e *DuplicateError) Error() string { return fmt.Sprintf("duplicate member %q", e.Name) }
