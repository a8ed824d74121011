package local

import (
	"bytes"
	"sync"

	"github.com/oncepay/oncepay/test/pgproxy"
)

// replies loses the reply to one COMMIT, chosen by what its transaction wrote.
type replies struct {
	mu    sync.Mutex
	mark  []byte // nil: nothing is to be lost
	marks map[int]bool
	lost  int
}

// LoseCommitReply makes the API lose the reply to the next COMMIT of a transaction in which these
// bytes were sent to Postgres: it has committed, and the connection breaks before the API hears of it.
func (s *Service) LoseCommitReply(mark string) { s.replies.arm([]byte(mark)) }

// CommitReplies returns how many were lost, and whether one is still to be.
func (s *Service) CommitReplies() (lost int, armed bool) {
	s.replies.mu.Lock()
	defer s.replies.mu.Unlock()
	return s.replies.lost, s.replies.mark != nil
}

func (r *replies) arm(mark []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mark, r.marks = mark, map[int]bool{}
}

// seen looks for the mark in what a connection sends before its COMMIT.
func (r *replies) seen(conn int, message []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mark != nil && bytes.Contains(message, r.mark) {
		r.marks[conn] = true
	}
}

func (r *replies) fate(conn, _ int) pgproxy.Fate {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mark == nil || !r.marks[conn] {
		return pgproxy.Pass
	}
	r.mark = nil // one only
	r.lost++
	return pgproxy.LoseReply
}
