package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/tools/rig"
)

// lasting is longer than any run.
const lasting = time.Hour

// Requests about holds. Their bodies differ in length, unlike that of payments.

// authorize appends the request for a payment that is held so long.
func (p *payments) authorize(buffer []byte, key uuid.UUID, hold time.Duration) []byte {
	from := rand.IntN(len(p.accounts))
	to := (from + 1 + rand.IntN(len(p.accounts)-1)) % len(p.accounts)
	body := fmt.Sprintf(`{"amount_minor":100,"currency":"USD","source_account":"%s","destination_account":"%s",`+
		`"capture":"manual","authorization_seconds":%d}`, p.accounts[from], p.accounts[to], int(hold.Seconds()))
	return p.post(buffer, "", key, body)
}

// end appends a capture or cancel of a payment.
func (p *payments) end(buffer []byte, payment uuid.UUID, action string, key uuid.UUID) []byte {
	return p.post(buffer, "/"+payment.String()+"/"+action, key, "{}")
}

// refund appends a refund of a little.
func (p *payments) refund(buffer []byte, payment, key uuid.UUID) []byte {
	return p.post(buffer, "/"+payment.String()+"/refunds", key, `{"amount_minor":1}`)
}

// card appends a payment by card.
func (p *payments) card(buffer []byte, key uuid.UUID) []byte {
	body := fmt.Sprintf(`{"amount_minor":100,"currency":"USD","destination_account":"%s",`+
		`"payment_method":{"type":"card","token":"tok_visa"}}`, p.accounts[rand.IntN(len(p.accounts))])
	return p.post(buffer, "", key, body)
}

func (p *payments) post(buffer []byte, path string, key uuid.UUID, body string) []byte {
	return fmt.Appendf(buffer, "POST /api/v1/payments%s HTTP/1.1\r\nHost: oncepay\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\nIdempotency-Key: %s\r\n\r\n%s",
		path, p.token, len(body), key, body)
}

// contention is how many payments all connections capture and cancel.
const contention = 100

// contended is what happened to them. Who ends a payment authorizes another in its place.
type contended struct {
	payments                    *payments
	places                      [contention]atomic.Pointer[uuid.UUID]
	held, captured, ended, late atomic.Int64
}

// contend measures the life of payments that everyone wants to end, and counts deadlocks.
func (b *intakeBench) contend(ctx context.Context) error {
	database, drop, err := b.fresh(ctx)
	if err != nil {
		return err
	}
	defer drop()

	c := &contended{payments: newPayments(b.shop, false)}
	err = b.session(ctx, scenario{group: true}, database, func(s *session) error {
		return c.run(ctx, s)
	})
	if err != nil {
		return err
	}

	// The API has ended, so its backends have reported what they counted.
	deadlocks, err := rig.Query[float64](ctx, b.owner(database),
		`SELECT deadlocks::float8 FROM pg_stat_database WHERE datname = current_database()`)
	if err != nil {
		return err
	}

	seconds := b.window().Seconds()
	b.figures.add("contended", measured{
		"ended_per_s": float64(c.ended.Load()) / seconds, "refused_per_s": float64(c.late.Load()) / seconds,
		"deadlocks": deadlocks,
	}, "")
	members := map[string]any{}
	fmt.Fprintf(b, "\n%s, after: %s\n%d connections, %d payments, %d s\n",
		b.machine, loadAverage(), b.connections, contention, b.seconds)
	b.figures.show(b, contendedTable, "", members)
	writeJSON(b, members)
	if deadlocks > 0 {
		return fmt.Errorf("%.0f deadlocks", deadlocks)
	}
	return nil
}

// run lets all connections end payments until the time is over.
func (c *contended) run(ctx context.Context, s *session) error {
	until := time.Now().Add(s.window())
	errs := make([]error, s.connections)
	var all sync.WaitGroup
	for n := range s.connections {
		all.Go(func() { errs[n] = c.connection(ctx, s.api.Addr, n, until) })
	}
	all.Wait()

	captured, ended := int(c.captured.Load()), int(c.ended.Load())
	s.count(ofHold, int(c.held.Load()))
	s.count(ofCapture, captured)
	s.count(ofCancel, ended-captured)
	s.count(ofRefusal, int(c.late.Load()))
	if ended == 0 || c.late.Load() == 0 {
		errs = append(errs, errors.New("nothing was contended"))
	}
	return errors.Join(errs...)
}

func (c *contended) connection(ctx context.Context, api string, n int, until time.Time) error {
	conn, err := net.Dial("tcp", api)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	_ = conn.SetDeadline(until.Add(patience))

	in := bufio.NewReader(conn)
	if n < contention {
		if err := c.place(conn, in, n); err != nil {
			return err
		}
	}
	for time.Now().Before(until) {
		place := rand.IntN(contention)
		payment := c.places[place].Load()
		if payment == nil {
			continue // not there yet
		}

		action := []string{"capture", "cancel"}[rand.IntN(2)]
		got, err := exchange(conn, in, c.payments.end(nil, *payment, action, newKey()))
		switch {
		case err != nil:
			return err
		case got.status == 409:
			c.late.Add(1)
			continue
		case got.status != 200:
			return fmt.Errorf("%s: %+v", action, got)
		case action == "capture":
			c.captured.Add(1)
		}
		c.ended.Add(1)
		if err := c.place(conn, in, place); err != nil {
			return err
		}
	}
	return nil
}

// place authorizes a payment that all may end.
func (c *contended) place(conn net.Conn, in *bufio.Reader, n int) error {
	got, err := exchange(conn, in, c.payments.authorize(nil, newKey(), lasting))
	if err != nil || got.status != 201 {
		return errors.Join(err, fmt.Errorf("authorize: %+v", got))
	}
	c.held.Add(1)
	c.places[n].Store(&got.payment)
	return nil
}
