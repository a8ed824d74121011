package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/google/uuid"
)

// The load generator shares the processors with what it measures, so it speaks HTTP/1.1 by hand: a request is one buffer in which a
// few places change, an answer is its status, its length and whether it was a replay.

// payments makes requests. All of a payment follows from its key, so that a repeat needs nothing else.
type payments struct {
	accounts [][]byte // ids as text
	hot      bool     // every payment goes to the first account

	text                                                  []byte
	key, amount, source, destination, customer, reference int // where each begins in text
}

const blank = "00000000-0000-0000-0000-000000000000"

// newPayments fills the fields that clients usually fill.
func newPayments(token string, accounts []uuid.UUID, hot bool) *payments {
	p := &payments{hot: hot}
	for _, id := range accounts {
		p.accounts = append(p.accounts, []byte(id.String()))
	}
	var body bytes.Buffer
	put := func(b *bytes.Buffer, before, value string) (at int) {
		b.WriteString(before)
		at = b.Len()
		b.WriteString(value)
		return at
	}
	p.amount = put(&body, `{"amount_minor":`, "100")
	p.source = put(&body, `,"currency":"USD","source_account":"`, blank)
	p.destination = put(&body, `","destination_account":"`, blank)
	p.customer = put(&body, `","description":"Invoice 2026-001742, October","metadata":{"customer":"c-`, "00000000")
	p.reference = put(&body, `"},"client_reference":"order-`, "00000000")
	body.WriteString(`"}`)

	var all bytes.Buffer
	p.key = put(&all, "POST /api/v1/payments HTTP/1.1\r\nHost: oncepay\r\nAuthorization: Bearer "+token+
		"\r\nContent-Type: application/json\r\nIdempotency-Key: ", blank)
	fmt.Fprintf(&all, "\r\nContent-Length: %d\r\n\r\n", body.Len())
	for _, place := range []*int{&p.amount, &p.source, &p.destination, &p.customer, &p.reference} {
		*place += all.Len()
	}
	all.Write(body.Bytes())
	p.text = all.Bytes()
	return p
}

// buffer is what a connection sends again and again, changed by write.
func (p *payments) buffer() []byte { return bytes.Clone(p.text) }

// write makes buffer the request under the key.
func (p *payments) write(buffer []byte, key uuid.UUID) {
	n := uint32(len(p.accounts))
	from, step := binary.BigEndian.Uint32(key[0:])%n, 1+binary.BigEndian.Uint32(key[9:])%(n-1)
	to := (from + step) % n
	if p.hot {
		from, to = step, 0
	}
	text, _ := key.MarshalText() // cannot fail
	copy(buffer[p.key:], text)
	copy(buffer[p.amount:], strconv.Itoa(100+int(key[13]))) // three digits
	copy(buffer[p.source:], p.accounts[from])
	copy(buffer[p.destination:], p.accounts[to])
	hex.Encode(buffer[p.customer:], key[0:4])
	hex.Encode(buffer[p.reference:], key[9:13])
}

// answer is what the load generator wants to know of a response.
type answer struct {
	status   int
	replayed string // Idempotent-Replayed; empty: there was none
}

// answers reads one response after the other from a connection.
type answers struct {
	from io.Reader
	buf  [8 << 10]byte // a header is some hundred bytes
	n    int           // bytes in buf
}

var errClosed = errors.New("connection closed without an answer")

// next reads a response to its end. There must be nothing after it: nothing else was asked for.
func (a *answers) next() (answer, error) {
	a.n = 0
	head := -1
	for head < 0 {
		if a.n == len(a.buf) {
			return answer{}, fmt.Errorf("header is longer than %d bytes", len(a.buf))
		}
		seen := max(0, a.n-3)
		n, err := a.from.Read(a.buf[a.n:])
		a.n += n
		if i := bytes.Index(a.buf[seen:a.n], []byte("\r\n\r\n")); i >= 0 {
			head = seen + i + 4
			break
		}
		if err != nil {
			return answer{}, a.broken(err)
		}
	}
	got, length, err := parseHead(a.buf[:head-2])
	if err != nil {
		return answer{}, err
	}
	for left := length - (a.n - head); left != 0; {
		if left < 0 {
			return answer{}, errors.New("bytes after the end of the answer")
		}
		n, err := a.from.Read(a.buf[:])
		if left -= n; left > 0 && err != nil {
			return answer{}, a.broken(err)
		}
	}
	return got, nil
}

func (a *answers) broken(err error) error {
	switch {
	case !errors.Is(err, io.EOF):
		return err
	case a.n == 0:
		return errClosed
	}
	return io.ErrUnexpectedEOF
}

// parseHead reads a status line and header lines, each with its end.
func parseHead(head []byte) (got answer, length int, err error) {
	line, rest, _ := bytes.Cut(head, []byte("\r\n"))
	if len(line) < 12 || string(line[:9]) != "HTTP/1.1 " || len(line) > 12 && line[12] != ' ' {
		return got, 0, fmt.Errorf("not the beginning of an answer: %.40q", line)
	}
	if got.status, err = strconv.Atoi(string(line[9:12])); err != nil || got.status < 200 {
		return got, 0, fmt.Errorf("not a status: %.40q", line)
	}
	length = -1
	for len(rest) > 0 {
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			return got, 0, fmt.Errorf("not a header: %.40q", line)
		}
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.Atoi(string(value)); err != nil || length < 0 {
				return got, 0, fmt.Errorf("not a length: %.40q", line)
			}
		case bytes.EqualFold(name, []byte("Idempotent-Replayed")):
			got.replayed = "false"
			if string(value) != "false" {
				got.replayed = string(value)
			}
		}
	}
	if length < 0 {
		return got, 0, errors.New("answer without Content-Length")
	}
	return got, length, nil
}
