package invariant

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Exchange is one attempt of a client at a command, as the client saw it. A history has one JSON object
// per line, and every line ends with a newline.
//
// A history is complete: it has every attempt of its clients, including those without an answer.
// So each run has clients of its own and outlives them, and a truncated last line is rejected.
// Repeats must send the same bytes, since requests are told apart by their digests. A history
// covers less time than answers are kept.
type Exchange struct {
	ClientID uuid.UUID `json:"client_id"`
	Key      string    `json:"key"`
	Request  string    `json:"request"` // hex SHA-256 of what was sent: path, condition and body
	Command  Command   `json:"command"`

	PaymentID   uuid.UUID `json:"payment_id,omitzero"` // of a later command: what it is about
	AmountMinor int64     `json:"amount_minor"`        // 0: all that can be captured or refunded

	// Of Pay, Authorize and Charge.
	Currency           string    `json:"currency,omitempty"`
	SourceAccount      uuid.UUID `json:"source_account,omitzero"`
	DestinationAccount uuid.UUID `json:"destination_account,omitzero"`

	Status    int    `json:"status"`               // 0: no answer, or not all of it
	Code      string `json:"code,omitempty"`       // of a problem
	Answer    string `json:"answer,omitempty"`     // hex SHA-256 of the body that came
	Replayed  bool   `json:"replayed,omitempty"`   // Idempotent-Replayed said so
	RequestID string `json:"request_id,omitempty"` // to find it in the log; not compared
}

// Command is what a client asked for.
type Command string

// The commands of a history. Capture, Cancel and Refund are about a payment that was made before.
const (
	Pay       Command = "pay"
	Authorize Command = "authorize"
	Capture   Command = "capture"
	Cancel    Command = "cancel"
	Refund    Command = "refund"
	Charge    Command = "charge" // a payment by card; it has no source account
)

// maxLine bounds the memory that a file which is no history can take.
const maxLine = 1 << 20

func copyHistory(ctx context.Context, conn *pgx.Conn, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("read history: %w", err)
	}
	defer f.Close()

	h := &historyRows{name: name, lines: bufio.NewReaderSize(f, maxLine)}

	// h knows the line of a defect; CopyFrom only that its source failed.
	_, err = conn.CopyFrom(ctx, pgx.Identifier{"exchanges"}, exchangeColumns, h)
	switch {
	case h.err != nil:
		return h.err
	case err != nil:
		return fmt.Errorf("copy history %s: %w", name, err)
	}
	return nil
}

var exchangeColumns = []string{
	"client_id", "key", "request", "command", "payment_id",
	"amount_minor", "currency", "source_account", "destination_account",
	"status", "code", "answer", "replayed",
}

// historyRows reads a file as a pgx.CopyFromSource.
type historyRows struct {
	name   string
	lines  *bufio.Reader
	number int
	row    []any
	err    error
}

func (h *historyRows) Next() bool {
	line, err := h.lines.ReadSlice('\n')
	h.number++

	switch {
	case errors.Is(err, io.EOF) && len(line) == 0:
		return false
	case errors.Is(err, io.EOF):
		// The client died, and some of its requests have no line at all. Their payments would look
		// as if no client had asked for them, so this history cannot be compared.
		h.err = h.wrong(errors.New("it is cut off: its writer died, so some of its requests may be missing"))
		return false
	case errors.Is(err, bufio.ErrBufferFull):
		h.err = h.wrong(fmt.Errorf("longer than %d bytes", maxLine))
		return false
	case err != nil:
		h.err = h.wrong(err)
		return false
	}

	if h.row, err = exchangeRow(line); err != nil {
		h.err = h.wrong(err)
		return false
	}
	return true
}

func (h *historyRows) Values() ([]any, error) { return h.row, nil }
func (h *historyRows) Err() error             { return h.err }

func (h *historyRows) wrong(err error) error {
	return fmt.Errorf("read history %s, line %d: %w", h.name, h.number, err)
}

func exchangeRow(line []byte) ([]any, error) {
	var x Exchange
	if err := json.Unmarshal(line, &x); err != nil {
		return nil, fmt.Errorf("not an exchange: %w", err)
	}

	request, err := hex.DecodeString(x.Request)
	if err != nil || len(request) != sha256.Size {
		return nil, errors.New("request is not the hex SHA-256 of a body")
	}

	var answer []byte
	if x.Answer != "" {
		if answer, err = hex.DecodeString(x.Answer); err != nil || len(answer) != sha256.Size {
			return nil, errors.New("answer is not the hex SHA-256 of a body")
		}
	}

	var about *[16]byte
	if x.PaymentID != uuid.Nil {
		about = (*[16]byte)(&x.PaymentID)
	}

	// Check here, where an error can name the line.
	switch {
	case x.ClientID == uuid.Nil:
		return nil, errors.New("no client_id")
	case x.Key == "":
		return nil, errors.New("no key")
	case !slices.Contains([]Command{Pay, Authorize, Charge, Capture, Cancel, Refund}, x.Command):
		return nil, fmt.Errorf("command is %q", x.Command)
	case slices.Contains([]Command{Pay, Authorize, Charge}, x.Command) != (about == nil):
		return nil, fmt.Errorf("command %s with payment_id %s", x.Command, x.PaymentID)
	case strings.ContainsRune(x.Key+x.Currency+x.Code, 0):
		return nil, errors.New("a text with the character U+0000")
	case x.Status != 0 && (x.Status < 100 || x.Status > 599):
		return nil, fmt.Errorf("status is %d", x.Status)
	case x.Status != 0 && answer == nil:
		return nil, fmt.Errorf("status %d without the digest of an answer", x.Status)
	}

	// The driver copies a [16]byte as it is; it would print a uuid.UUID and parse it again.
	return []any{
		[16]byte(x.ClientID), x.Key, request, string(x.Command), about, x.AmountMinor, x.Currency,
		[16]byte(x.SourceAccount), [16]byte(x.DestinationAccount),
		x.Status, x.Code, answer, x.Replayed,
	}, nil
}
