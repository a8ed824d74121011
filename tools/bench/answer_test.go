package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/traffic"
)

func someAccounts(n int) (s traffic.Seed) {
	s.Token = "oncepay_token"
	s.Accounts = make([]struct {
		ID uuid.UUID `json:"id"`
	}, n)
	for i := range s.Accounts {
		s.Accounts[i].ID = uuid.New()
	}
	return s
}

func TestRequestIsWhatTheAPIReads(t *testing.T) {
	t.Parallel()
	accounts := someAccounts(7)
	for _, hot := range []bool{false, true} {
		p := newPayments(accounts, hot)
		for range 200 {
			key := newKey()
			buffer := p.write(nil, key)
			r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(buffer)))
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Fatal(err)
			}
			var payment struct {
				Amount              int `json:"amount_minor"`
				Source, Destination uuid.UUID
			}
			fields := map[string]any{}
			if err := json.Unmarshal(body, &fields); err != nil {
				t.Fatalf("%v: %s", err, body)
			}
			payment.Source = uuid.MustParse(fields["source_account"].(string))
			payment.Destination = uuid.MustParse(fields["destination_account"].(string))
			if got := r.Header.Get("Idempotency-Key"); got != key.String() {
				t.Errorf("key %s was sent as %s", key, got)
			}
			if payment.Source == payment.Destination || fields["amount_minor"].(float64) < 100 {
				t.Errorf("not a payment: %s", body)
			}
			if hot && payment.Destination != accounts.Accounts[0].ID {
				t.Errorf("a payment that does not touch the hot account: %s", body)
			}
			if again := p.write(nil, key); !bytes.Equal(again, buffer) {
				t.Error("a repeat of a key is another request")
			}
		}
	}
}

const good = "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\ncontent-length: 7\r\nIdempotent-Replayed: true\r\n\r\n{\"a\":1}"

func TestAnswerIsReadInAnyPieces(t *testing.T) {
	t.Parallel()
	long := "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 20000\r\n\r\n" + strings.Repeat("x", 20_000)
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"byte by byte": iotest.OneByteReader, "half by half": iotest.HalfReader, "end with the last bytes": iotest.DataErrReader,
		"all at once": func(r io.Reader) io.Reader { return r },
	} {
		for text, want := range map[string]answer{good: {status: 201, replayed: "true"}, long: {status: 503}} {
			in := bufio.NewReader(wrap(strings.NewReader(text)))
			got, err := readAnswer(in)
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(answer{})); err != nil || diff != "" {
				t.Errorf("%s: %v\n%s", name, err, diff)
			}
			if _, err := readAnswer(in); err == nil {
				t.Errorf("%s: an answer after the last one", name)
			}
		}
	}
}

func TestTornOrMalformedAnswerIsAnError(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing":                 "",
		"half a header":           good[:40],
		"half a body":             good[:len(good)-1],
		"more than was asked for": good + "H",
		"no length":               "HTTP/1.1 201 Created\r\n\r\n",
		"chunked":                 "HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"a length below zero":     "HTTP/1.1 201 Created\r\nContent-Length: -1\r\n\r\n",
		"a length in words":       "HTTP/1.1 201 Created\r\nContent-Length: few\r\n\r\n",
		"another protocol":        "SSH-2.0-OpenSSH_9.2\r\n\r\n",
		"a status in words":       "HTTP/1.1 abc Created\r\nContent-Length: 0\r\n\r\n",
		"a provisional status":    "HTTP/1.1 100 Continue\r\n\r\n",
		"no header at all":        "HTTP/1.1 201 Created\r\nContent-Length 0\r\n\r\n",
		"an endless header":       "HTTP/1.1 201 Created\r\nX: " + strings.Repeat("x", 9000) + "\r\n\r\n",
	} {
		got, err := readAnswer(bufio.NewReader(strings.NewReader(text)))
		if err == nil && got.status/100 == 2 {
			t.Errorf("%s: taken for %+v", name, got)
		}
	}
}
