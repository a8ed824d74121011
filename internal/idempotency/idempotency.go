package idempotency

import (
	"time"

	"github.com/google/uuid"
)

// Request is one attempt to do something under an idempotency key.
type Request struct {
	// Tenant, client and key together are the key's scope. Take the first two from the
	// credential, never from the body.
	TenantID uuid.UUID
	ClientID uuid.UUID
	Key      string // 1 to 255 visible ASCII characters, as ParseKey returns it

	// Fingerprint tells this request from another one under the same key; see NewFingerprint.
	Fingerprint Fingerprint

	// Older holds the fingerprints that earlier versions of the rules give this request. Keep them
	// for as long as keys live that were stored under those versions: a stored key is compared with
	// the fingerprint of its own version. Nil while there is only one version.
	Older []Fingerprint

	// RequestID names this attempt in logs and in the Original-Request-Id of every later replay.
	RequestID string
}

// fingerprintOf returns the request's fingerprint by the rules of a version, if it has one.
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
	Status      int    // 200 to 499; a 5xx is rolled back and never stored
	ContentType string // Content-Type
	Location    string // Location; empty if the answer has none
	Body        []byte
}

// State is what Claim found out about a request.
type State int

// The states of a claim.
const (
	// New: the key is free, and this transaction holds it until it ends. Do the work, then Store.
	New State = iota + 1
	// Replay: the work was done before. Response is the first answer.
	Replay
	// InProgress: another transaction holds the key. Answer 409 with Retry-After.
	InProgress
	// Mismatch: the key was used for another request. Answer 422; never do the work.
	Mismatch
	// UnknownFingerprintVersion: the key was stored under a version of the fingerprint rules that
	// the request has no fingerprint for, so Replay and Mismatch cannot be told apart. Answer 503;
	// never do the work.
	UnknownFingerprintVersion
	// Busy: the key is free and nothing was done, because another session has locked what the work
	// needs. Claim never returns it. A caller may set it on a New answer; Store then skips the
	// request. Answer 503 with Retry-After.
	Busy
	// Moving: like Busy, because what the work needs is moving to another database. It does not help
	// to wait here.
	Moving
)

// String returns the state's name in metrics and logs.
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
	case UnknownFingerprintVersion:
		return "unreadable" // the problem that clients see is idempotency-key-unreadable
	case Busy:
		return "busy"
	case Moving:
		return "moving"
	}
	return "none"
}

// Answer is what a request gets.
type Answer struct {
	State    State
	Response Response // New: filled in by the caller before Store. Replay: the first answer.

	RequestID string    // the attempt that did the work; when New, this one
	Date      time.Time // when the key was first seen, by the database clock; zero when InProgress
	Expires   time.Time // until when the answer is promised to be kept; zero when InProgress
}
