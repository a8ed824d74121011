package credentials

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
)

// The format of a token. The fixed prefix, fixed length and checksum let a scanner find it in a
// repository or a log without false alarms, and a double click selects all of it:
//
//	oncepay_0123456789abcdef_0123456789abcdef0123456789abcdef0AbCdE
//	        id, public       secret                          checksum
//	oncepay_[0-9A-Za-z]{16}_[0-9A-Za-z]{38}
//
// The secret's 32 characters are 190 random bits. The checksum is the CRC-32 (IEEE) of everything
// before it, in base 62, most significant digit first, padded with 0.
const (
	prefix      = "oncepay_"
	idLen       = 16
	secretLen   = 32
	checksumLen = 6
	bodyLen     = len(prefix) + idLen + len("_") + secretLen // what the checksum covers
	tokenLen    = bodyLen + checksumLen
)

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// Token is a credential as its client holds it. Printed, logged or encoded it shows its id only:
// Reveal is the one way to the secret.
type Token struct {
	id string
	// A pointer, because fmt prints the fields of a Token that is in an unexported field without
	// calling Format.
	secret *string
}

func newToken() Token {
	secret := random(secretLen)
	return Token{id: random(idLen), secret: &secret}
}

// Parse parses a token. It rejects everything that Reveal would not have written, so a mistyped or
// truncated token needs no look-up.
func Parse(s string) (Token, bool) {
	if len(s) != tokenLen || !strings.HasPrefix(s, prefix) || s[len(prefix)+idLen] != '_' {
		return Token{}, false
	}

	// All three parts must be as newToken makes them.
	id, secret := s[len(prefix):len(prefix)+idLen], s[bodyLen-secretLen:bodyLen]
	if !isBase62(id) || !isBase62(secret) || s[bodyLen:] != checksum(s[:bodyLen]) {
		return Token{}, false
	}

	// Clones do not keep the whole header in memory.
	secret = strings.Clone(secret)
	return Token{id: strings.Clone(id), secret: &secret}, true
}

// ID returns the public part: what is looked up, revoked and shown in logs.
func (t Token) ID() string { return t.id }

// Reveal returns the whole token with its secret, to show it to its owner once. It is empty for the
// zero Token.
func (t Token) Reveal() string {
	if t.secret == nil {
		return ""
	}

	body := prefix + t.id + "_" + *t.secret
	return body + checksum(body)
}

// String returns the token without its secret.
func (t Token) String() string { return prefix + t.id + "_[redacted]" }

// Format writes the same as String for every verb: %d and %x would otherwise print the fields.
func (t Token) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, t.String()) }

// MarshalText returns the same as String, for encoding/json and log/slog.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// hash returns what the database stores of the secret.
func (t Token) hash() [sha256.Size]byte { return sha256.Sum256([]byte(*t.secret)) }

// random returns n characters of base 62, each equally likely.
func random(n int) string {
	out := make([]byte, 0, n)
	buf := make([]byte, 2*n)

	for {
		_, _ = rand.Read(buf) // crashes the program instead of failing
		for _, b := range buf {
			// 248 is the highest multiple of 62: larger bytes would favour the first characters.
			if b >= 248 {
				continue
			}
			if out = append(out, base62[b%62]); len(out) == n {
				return string(out)
			}
		}
	}
}

func checksum(s string) string {
	var digits [checksumLen]byte
	n := crc32.ChecksumIEEE([]byte(s))
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i], n = base62[n%62], n/62
	}
	return string(digits[:])
}

func isBase62(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}
