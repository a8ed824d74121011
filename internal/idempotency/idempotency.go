package idempotency

import (
	"time"

	"github.com/google/uuid"
)

// Request is one attempt to do something under an idempotency key.
type Request struct {
	TenantID uuid.UUID // the key's scope is tenant, client and key:
	ClientID uuid.UUID // both come from the credential, never from the body
	Key      string    // 1 to 255 visible ASCII characters, as ParseKey returns it

	// Fingerprint tells this request from another one under the same key; see NewFingerprint.
	Fingerprint Fingerprint
	// Older are fingerprints of this same request by the rules of older versions, for as long as keys live that were stored
	// under them. A stored key is compared with the one of its own version. Nil while there is only one version.
	Older []Fingerprint

	// RequestID names this attempt in logs and in Original-Request-Id of every later replay.
	RequestID string
}

// fingerprintOf returns the request's fingerprint by the rules of a version; false: nobody made one.
func (r Request) fingerprintOf(version int16) (f Fingerprint, known bool) {
	if r.Fingerprint.Version == version {
		return r.Fingerprint, true
	}
	for _, f := range r.Older {
		if f.Version == version {
			return f, true
		}
	}
	return Fingerprint{}, false
}

// Response is an answer as it is stored and replayed: byte for byte.
type Response struct {
	Status      int    // 200 to 499; what ends in 5xx is rolled back and stored nowhere
	ContentType string // Content-Type
	Location    string // Location; empty: the answer has none
	Body        []byte
}

// State says what Claim found out about a request.
type State int

// The states of a claim.
const (
	// New: nobody has done it, and nobody else can while this transaction lives. Do the work, then Store.
	New State = iota + 1
	// Replay: it was done before. Response is the first answer.
	Replay
	// InProgress: another transaction holds the key. Answer 409 with Retry-After.
	InProgress
	// Mismatch: the key was used for another request. Answer 422; never do the work.
	Mismatch
	// Unreadable: the key was stored with a fingerprint of a version that the request has none of, so nobody can tell Replay from
	// Mismatch. Answer 503; never do the work.
	Unreadable
	// Busy: the key is free and nothing was done, because what the work needs is locked by somebody else. Claim does not say so, but the caller
	// may, of a request that was New: Store then leaves it out. Answer 503 with Retry-After.
	Busy
)

// String returns the state as it stands in metrics and logs.
func (s State) String() string {
	switch s {
	case New:
		return "new"
	case Replay:
		return "replay"
	case InProgress:
		return "in_progress"
	case Mismatch:
		return "mismatch"
	case Unreadable:
		return "unreadable"
	case Busy:
		return "busy"
	}
	return "none"
}

// Answer is what a request gets.
type Answer struct {
	State    State
	Response Response // New: filled by the caller before Store. Replay: the first answer. Else empty.

	RequestID string    // the attempt that did the work: this one's own id when New
	Date      time.Time // when the key was first seen, by the database clock; zero when InProgress
	Expires   time.Time // until when the answer is promised to be kept; zero when InProgress
}
