package httpapi

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

// position is where a page ended: the id of its last payment, or the number of its last entry.
type position [16]byte

const macLen = 16 // 128 bits: enough against guessing

// sign makes a cursor: the position, and a signature over it and over the list that it belongs to. So a cursor is good for
// one tenant, one list and one set of filters. It is signed to be opaque in earnest: clients cannot come to depend on what
// is in it. Were it forged all the same, it would show rows of the tenant's own: that is up to the query, not to the cursor.
func (s *server) sign(list string, at position) string {
	return base64.RawURLEncoding.EncodeToString(append(at[:], s.mac(list, at)...))
}

// open checks a cursor and returns its position.
func (s *server) open(list, cursor string) (at position, err error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(b) != len(at)+macLen || strings.ContainsAny(cursor, "\r\n") {
		return at, errCursor
	}
	copy(at[:], b)
	if !hmac.Equal(b[len(at):], s.mac(list, at)) {
		return at, errCursor
	}
	return at, nil
}

var errCursor = refuse("invalid-cursor", "Use next_cursor as it was given, with the same filters, or begin the list anew without a cursor.")

func (s *server) mac(list string, at position) []byte {
	h := hmac.New(sha256.New, s.CursorKey)
	h.Write(at[:]) // of fixed length, so that nothing else concatenates to the same bytes
	h.Write([]byte(list))
	return h.Sum(nil)[:macLen]
}
