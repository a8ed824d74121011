package traffic

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
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
	x, err := askedFor(a)
	x.ClientID, x.Key = id, a.Key
	x.Request = digest(fmt.Appendf(nil, "%s %d %s", a.Path, a.IfVersion, a.Body))
	x.Status, x.Code = a.Answer.Status, a.Answer.Problem().Code
	x.Answer, x.Replayed = digest(a.Answer.Body), a.Answer.Replayed()
	x.RequestID = a.Answer.Header.Get("X-Request-Id")
	line, encodeErr := json.Marshal(x)

	switch {
	case a.Answer.Status == 0:
		h.Cut.Add(1)
	case a.Answer.Replayed():
		h.Replays.Add(1)
	case a.Answer.Status >= 400 && a.Answer.Settled():
		h.Refused.Add(1)
	}

	h.mu.Lock()
	defer h.mu.Unlock()

	_, writeErr := h.buffer.Write(append(line, '\n'))
	// A client cannot act on these errors, so Close returns them.
	h.err = errors.Join(h.err, err, encodeErr, writeErr)
}

// commands are the last parts of paths.
var commands = map[string]invariant.Command{
	"capture": invariant.Capture, "cancel": invariant.Cancel, "refunds": invariant.Refund,
}

// askedFor returns what the client wanted.
func askedFor(a client.Attempt) (x invariant.Exchange, err error) {
	var p payment
	if err := json.Unmarshal(a.Body, &p); err != nil {
		return x, err
	}
	x = invariant.Exchange{
		Command: invariant.Pay, AmountMinor: p.AmountMinor, Currency: p.Currency,
		SourceAccount: p.SourceAccount, DestinationAccount: p.DestinationAccount,
	}
	switch {
	case p.Capture == "manual":
		x.Command = invariant.Authorize
	case p.PaymentMethod != nil:
		x.Command = invariant.Charge
	}

	if below, is := strings.CutPrefix(a.Path, paymentsPath+"/"); is {
		id, what, _ := strings.Cut(below, "/")
		x.Command = commands[what]
		x.PaymentID, err = uuid.Parse(id)
	}
	return x, err
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
