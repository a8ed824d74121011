package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/traffic"
	"github.com/oncepay/oncepay/tools/rig"
)

// load is one stretch of traffic.
type load struct {
	dial        func() (net.Conn, error)
	payments    *payments
	connections int
	// rate is in requests a second, however long answers take (open loop). Zero: each connection
	// sends as soon as it was answered (closed loop).
	rate     int
	replay   []uuid.UUID // send these keys, which have answers, over and over; nil: new ones
	pairs    bool        // authorize and capture; both together count once
	refunds  []uuid.UUID // give something back of one of these payments; nil: pay
	cards    bool        // pay by card
	refusals bool        // 429 is an answer like any other
	warmup   time.Duration
	window   time.Duration
	pause    func(time.Duration)
}

// patience is how long after the end of the window answers may come. Later ones are errors, as they
// are for clients.
const patience = 20 * time.Second

// result is what a load got.
type result struct {
	start  time.Time
	window span
	turns  atomic.Int64 // of the open loop

	mu sync.Mutex
	// latencies of the window. Closed loop: of what was answered in it, since it was sent; open
	// loop: of what was due in it, since it was due.
	latencies rig.Latencies
	minutes   []rig.Latencies // the same, for each minute of the window
	keys      []uuid.UUID     // of first answers, warm-up included; of pairs, the payments
	refused   int             // 429, warm-up included
	wrong     map[string]int  // answers that were not expected, by what they were
}

// span is the window. What happens before it is the warm-up.
type span struct{ from, until time.Time }

func (s span) holds(t time.Time) bool { return !t.Before(s.from) && t.Before(s.until) }

// run sends until the window is over. It calls measure when the window begins, with a function that
// returns when it ends.
func (l load) run(ctx context.Context, measure func(wait func())) (*result, error) {
	r := &result{start: time.Now(), latencies: rig.NewLatencies(), wrong: map[string]int{}}
	r.window.from = r.start.Add(l.warmup)
	r.window.until = r.window.from.Add(l.window)
	for range (l.window + time.Minute - 1) / time.Minute {
		r.minutes = append(r.minutes, rig.NewLatencies())
	}

	var all sync.WaitGroup
	for n := range l.connections {
		all.Go(func() { l.connection(ctx, n, r) })
	}
	all.Go(func() {
		rig.Wait(ctx, r.window.from)
		measure(func() { rig.Wait(ctx, r.window.until) })
	})
	all.Wait()
	return r, context.Cause(ctx)
}

// connection sends what is due, one request after the other, until the window is over or the
// connection is of no more use.
func (l load) connection(ctx context.Context, n int, r *result) {
	conn, err := l.dial()
	if err != nil {
		r.fail(err)
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	_ = conn.SetDeadline(r.window.until.Add(patience)) // without one it fails at once

	// The buffers are reused: garbage would cost what is measured its processor time.
	in := bufio.NewReader(conn)
	var request []byte
	for at, more := l.turn(r); more; at, more = l.turn(r) {
		key, want := newKey(), answer{status: 201, replayed: "false"}
		if len(l.replay) > 0 {
			key, want.replayed = l.replay[n%len(l.replay)], "true"
			n += l.connections
		}

		switch {
		case l.refunds != nil:
			request = l.payments.refund(request[:0], l.refunds[rand.IntN(len(l.refunds))], key)
		case l.cards:
			request = l.payments.card(request[:0], key)
		case l.pairs:
			request = l.payments.authorize(request[:0], key, lasting)
		default:
			request = l.payments.write(request[:0], key)
		}
		got, err := exchange(conn, in, request)
		if err == nil && l.pairs && got.status == 201 {
			key, want.status = got.payment, 200
			request = l.payments.end(request[:0], got.payment, "capture", newKey())
			got, err = exchange(conn, in, request)
		}
		if err != nil {
			r.fail(err)
			return
		}

		// A closed loop counts what was answered in the window, an open one what was due in it.
		now := time.Now()
		counted := now
		if l.rate > 0 {
			counted = at
		}
		l.add(r, key, got, want, counted, now.Sub(at))
	}
}

// turn returns when the next request is due: in a closed loop now. In an open loop requests are due
// evenly; it returns at that time, or at once if all connections were busy until after it.
func (l load) turn(r *result) (at time.Time, more bool) {
	at = time.Now()
	if l.rate > 0 {
		n := time.Duration(r.turns.Add(1) - 1)
		at = r.start.Add(n * time.Second / time.Duration(l.rate))
	}
	if !at.Before(r.window.until) {
		return at, false
	}

	// pause may return early.
	for d := time.Until(at); d > 0; d = time.Until(at) {
		l.pause(d)
	}
	return at, true
}

// add counts an answer as what it is, and its latency if at is in the window.
func (l load) add(r *result, key uuid.UUID, got, want answer, at time.Time, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()

	got.payment = want.payment
	switch {
	case got.status == 429 && l.refusals:
		r.refused++
	case got != want:
		r.wrong[fmt.Sprintf("%+v, expected %+v", got, want)]++
	case want.replayed == "false":
		r.keys = append(r.keys, key)
	}
	if r.window.holds(at) {
		r.latencies.Record(took)
		r.minutes[at.Sub(r.window.from)/time.Minute].Record(took)
	}
}

// fail leaves out addresses and ports, which differ from connection to connection.
func (r *result) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	r.wrong[err.Error()]++
}

// err names the answers that were not expected.
func (r *result) err() error {
	var list []string
	for _, what := range slices.Sorted(maps.Keys(r.wrong)) {
		list = append(list, fmt.Sprintf("%d × %s", r.wrong[what], what))
	}
	if len(list) == 0 {
		return nil
	}

	return errors.New("answers that were not expected: " + strings.Join(list, "; "))
}

// newKey is a UUID of version 4, without asking the kernel for each.
func newKey() (key uuid.UUID) {
	binary.BigEndian.PutUint64(key[:8], rand.Uint64())
	binary.BigEndian.PutUint64(key[8:], rand.Uint64())
	key[6], key[8] = key[6]&0x0f|0x40, key[8]&0x3f|0x80
	return key
}

// The load generator shares the processors with what it measures, so it writes requests by hand. A
// payment has the fields that clients usually fill, each of a fixed width.
const (
	head = "POST /api/v1/payments HTTP/1.1\r\nHost: oncepay\r\nAuthorization: Bearer %s\r\n" +
		"Content-Type: application/json\r\nContent-Length: %d\r\nIdempotency-Key: "
	body = `{"amount_minor":%d,"currency":"USD","source_account":"%s","destination_account":"%s",` +
		`"description":"Invoice 2026-001742, October","metadata":{"customer":"c-%08x"},` +
		`"client_reference":"order-%08x"}`
)

// payments makes requests. All of a payment follows from its key, so that a repeat needs nothing
// else.
type payments struct {
	accounts []string
	token    string
	head     string
	hot      bool // every payment goes to the first account
}

func newPayments(from traffic.Seed, hot bool) *payments {
	length := len(fmt.Sprintf(body, 100, uuid.Nil, uuid.Nil, 0, 0))
	p := &payments{token: from.Token, head: fmt.Sprintf(head, from.Token, length), hot: hot}
	for _, a := range from.Accounts {
		p.accounts = append(p.accounts, a.ID.String())
	}
	return p
}

// write appends the request under the key.
func (p *payments) write(buffer []byte, key uuid.UUID) []byte {
	first, second := binary.BigEndian.Uint32(key[0:]), binary.BigEndian.Uint32(key[9:])
	// Two different accounts.
	n := uint32(len(p.accounts))
	from, step := first%n, 1+second%(n-1)
	to := (from + step) % n
	if p.hot {
		from, to = step, 0
	}

	buffer = append(append(append(buffer, p.head...), key.String()...), "\r\n\r\n"...)
	amount := 100 + int(key[13]) // three digits
	return fmt.Appendf(buffer, body, amount, p.accounts[from], p.accounts[to], first, second)
}

// answer is what the load generator wants to know of a response.
type answer struct {
	status   int
	replayed string    // Idempotent-Replayed
	payment  uuid.UUID // in Location
}

// String leaves out the payment, which differs from answer to answer.
func (a answer) String() string { return fmt.Sprintf("{status:%d replayed:%s}", a.status, a.replayed) }

// exchange sends a request and reads its answer.
func exchange(conn net.Conn, in *bufio.Reader, request []byte) (answer, error) {
	if _, err := conn.Write(request); err != nil {
		return answer{}, err
	}
	return readAnswer(in)
}

// readAnswer reads a response to its end. There must be nothing after it: nothing else was asked
// for.
func readAnswer(in *bufio.Reader) (a answer, err error) {
	length := -1
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return a, err
		}

		line = bytes.TrimRight(line, "\r\n")
		name, value, _ := bytes.Cut(line, []byte(": "))

		switch {
		case first && (len(line) < len("HTTP/1.1 201") || !bytes.HasPrefix(line, []byte("HTTP/1.1 "))):
			err = errors.New("not HTTP/1.1")
		case first:
			a.status, err = strconv.Atoi(string(line[len("HTTP/1.1 "):len("HTTP/1.1 201")]))
		case bytes.EqualFold(name, []byte("Content-Length")):
			length, err = strconv.Atoi(string(value))
		case bytes.EqualFold(name, []byte("Idempotent-Replayed")):
			a.replayed = string(value)
		case bytes.EqualFold(name, []byte("Location")) && len(value) > 36:
			a.payment, err = uuid.ParseBytes(value[len(value)-36:])
		case len(line) > 0:
		case length < 0:
			err = errors.New("answer without a length")
		default:
			if _, err = in.Discard(length); err == nil && in.Buffered() > 0 {
				err = errors.New("bytes after the end of the answer")
			}
			return a, err
		}
		if err != nil {
			return a, err
		}
	}
}
