package traffic

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/client"
	"github.com/oncepay/oncepay/internal/invariant"
)

// History records every attempt of every client. The check afterwards compares it with the tables:
// what a client was promised must be there.
type History struct {
	Path string

	mu     sync.Mutex
	file   *os.File
	buffer *bufio.Writer
	err    error // all, joined

	// Counts for the progress line. Unknown: requests whose outcome no attempt reported.
	Replays, Refused, Cut, Unknown atomic.Int64
}

func openHistory(path string) (*History, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make the history: %w", err)
	}

	return &History{Path: path, file: f, buffer: bufio.NewWriterSize(f, 1<<16)}, nil
}

// add records an attempt of a client.
func (h *History) add(id uuid.UUID, a client.Attempt) {
	var p Payment
	err := json.Unmarshal(a.Body, &p)

	line, encodeErr := json.Marshal(invariant.Exchange{
		ClientID: id, Key: a.Key, Request: digest(a.Body),
		AmountMinor: p.AmountMinor, Currency: p.Currency,
		SourceAccount: p.SourceAccount, DestinationAccount: p.DestinationAccount,
		Status: a.Answer.Status, Code: a.Answer.Problem().Code,
		Answer: digest(a.Answer.Body), Replayed: a.Answer.Replayed(),
		RequestID: a.Answer.Header.Get("X-Request-Id"),
	})

	switch {
	case a.Answer.Status == 0:
		h.Cut.Add(1)
	case a.Answer.Replayed():
		h.Replays.Add(1)
	case a.Answer.Status >= 400 && a.Answer.Status < 500 && a.Answer.Status != http.StatusConflict:
		h.Refused.Add(1)
	}

	h.mu.Lock()
	defer h.mu.Unlock()

	_, writeErr := h.buffer.Write(append(line, '\n'))
	// A client cannot act on these errors, so Close returns them.
	h.err = errors.Join(h.err, err, encodeErr, writeErr)
}

func digest(b []byte) string {
	if b == nil {
		return ""
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Close completes the file and returns the errors of all writes. Further calls write nothing.
func (h *History) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.file != nil {
		h.err = errors.Join(h.err, h.buffer.Flush(), h.file.Close())
		h.file = nil
	}

	if h.err != nil {
		return fmt.Errorf("write the history: %w", h.err)
	}
	return nil
}
