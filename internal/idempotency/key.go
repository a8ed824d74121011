package idempotency

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/google/uuid"
)

// MaxKeyLength is the most characters a key may have.
const MaxKeyLength = 255

// Header is the name of the request header that carries the key.
const Header = "Idempotency-Key"

var (
	// ErrKeyMissing means that the request has no Idempotency-Key header.
	ErrKeyMissing = errors.New("the Idempotency-Key header is missing")
	// ErrKeyInvalid means that the header is not one well-formed key. Its text says why and may be
	// shown to the client.
	ErrKeyInvalid = errors.New("the Idempotency-Key is invalid")
)

// ParseKey returns the key of a request. A structured-field string ("k", RFC 9651 section 3.3.3)
// and the bare token k that Stripe's clients send are the same key. It rejects two header lines,
// lists, parameters, spaces, control characters and anything beyond ASCII.
func ParseKey(h http.Header) (string, error) {
	lines := h.Values(Header)
	switch {
	case len(lines) == 0:
		return "", ErrKeyMissing
	case len(lines) > 1:
		return "", fmt.Errorf("%w: it was sent %d times", ErrKeyInvalid, len(lines))
	}

	// Quoted as RFC 9651 has it, or bare as Stripe's clients send it.
	key, err := lines[0], error(nil)
	if strings.HasPrefix(key, `"`) {
		key, err = unquote(key)
	} else if i := strings.IndexAny(key, "\",;\\"); i >= 0 {
		err = fmt.Errorf("%w: a key with %q must be sent in double quotes", ErrKeyInvalid, key[i])
	}
	if err == nil {
		err = CheckKey(key)
	}
	if err != nil {
		return "", err
	}
	return key, nil
}

// CheckKey returns ErrKeyInvalid, with the reason, unless key has 1 to 255 visible ASCII characters.
func CheckKey(key string) error {
	invisible := func(r rune) bool { return r <= ' ' || r > '~' }

	switch {
	case key == "":
		return fmt.Errorf("%w: it is empty", ErrKeyInvalid)
	case len(key) > MaxKeyLength:
		return fmt.Errorf("%w: it has %d characters, at most %d are allowed",
			ErrKeyInvalid, len(key), MaxKeyLength)
	case strings.ContainsFunc(key, invisible):
		return fmt.Errorf("%w: only visible ASCII characters are allowed, no spaces", ErrKeyInvalid)
	}
	return nil
}

// unquote returns the content of a structured-field string. In it only a quote or a backslash may
// follow a backslash.
func unquote(line string) (string, error) {
	key := make([]byte, 0, len(line))

	for i := 1; i < len(line); i++ {
		switch rest := line[i+1:]; {
		case line[i] == '"' && rest != "":
			return "", fmt.Errorf("%w: unexpected text after the closing quote", ErrKeyInvalid)
		case line[i] == '"':
			return string(key), nil
		case line[i] == '\\' && !strings.HasPrefix(rest, `"`) && !strings.HasPrefix(rest, `\`):
			return "", fmt.Errorf("%w: \\ may only precede \" or \\", ErrKeyInvalid)
		case line[i] == '\\':
			i++
		}
		key = append(key, line[i])
	}
	return "", fmt.Errorf("%w: the closing quote is missing", ErrKeyInvalid)
}

// FingerprintVersion is the version of the rules in NewFingerprint. To change the rules, raise it,
// keep the old rules as a function of their own, and put their result into Request.Older until the
// retention has passed since the last instance of the old version stopped. Without that, a deploy
// answers the repeats of all earlier requests with UnknownFingerprintVersion.
const FingerprintVersion = 1

// Fingerprint identifies what a request asks for. No request has the zero Fingerprint.
type Fingerprint struct {
	Version int16
	Sum     [sha256.Size]byte
}

// NewFingerprint hashes what makes a request the same request: tenant, method, route pattern, path
// parameters, and the command as the program understood it, in one canonical encoding so that white
// space and the order of members do not matter. Each part is hashed with its length, so no two
// lists of parts hash alike.
func NewFingerprint(
	tenant uuid.UUID, method, route string, params []string, command []byte,
) Fingerprint {
	h := sha256.New()
	part := func(b []byte) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
		h.Write(b)
	}

	part([]byte{FingerprintVersion})
	part(tenant[:])
	part([]byte(method))
	part([]byte(route))

	part(binary.BigEndian.AppendUint64(nil, uint64(len(params))))
	for _, p := range params {
		part([]byte(p))
	}

	part(command)

	return Fingerprint{Version: FingerprintVersion, Sum: [sha256.Size]byte(h.Sum(nil))}
}

// hashKey is what a key is found by: the first 128 bits of SHA-256(tenant, client, key). Tenant and
// client have a fixed length, so no other scope and key concatenate to the same bytes.
func hashKey(tenant, client uuid.UUID, key string) []byte {
	b := make([]byte, 0, 32+MaxKeyLength)
	b = append(append(append(b, tenant[:]...), client[:]...), key...)

	sum := sha256.Sum256(b)
	return sum[:16]
}

// lockNumber is what a key's advisory lock is taken on: the first 64 bits of its hash. Two keys
// that share them cannot be worked on at the same time; nothing else happens.
func lockNumber(keyHash []byte) int64 {
	return int64(binary.BigEndian.Uint64(keyHash)) // the bits matter, not the number
}
