package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/tools/rig"
)

// each is the time to make an authorization, with room for slow machines.
const each = 500 * time.Microsecond

// expiry is the benchmark from top to bottom.
func expiry(ctx context.Context, o options, stdout io.Writer) (err error) {
	started, err := start(ctx, o, stdout, "api", "oncepay", "worker")
	defer func() { err = errors.Join(err, started.stop()) }()
	if err != nil {
		return err
	}

	b := &intakeBench{bench: started}
	b.variables = append(b.variables, "AUTHORIZATION_MIN=1s")
	b.Say("%s", b.machine)
	if b.shop, err = b.seed(ctx, tenant, b.accounts); err != nil {
		return err
	}
	for range b.rounds {
		database, drop, err := b.fresh(ctx)
		if err != nil {
			return err
		}
		err = b.session(ctx, scenario{group: true}, database, func(s *session) error {
			return s.expire(ctx, database)
		})
		drop()
		if err != nil {
			return err
		}
	}

	members := map[string]any{"rounds": b.rounds, "holds": b.holds, "rate": b.rate}
	fmt.Fprintf(b, "\n%s, after: %s\n%d authorizations, %d payments/s for %d s, %d rounds\n",
		b.machine, loadAverage(), b.holds, b.rate, b.seconds, b.rounds)
	b.figures.show(b, expiryTable, "", members)
	writeJSON(b, members)
	return nil
}

// expire measures the payments alone, and from the second in which all authorizations expire.
func (s *session) expire(ctx context.Context, database string) error {
	// By then they are made, and the payments alone are measured.
	over := time.Now().Add(10*time.Second + s.window() + time.Duration(s.holds)*each).Truncate(time.Second)
	s.Say("authorizing %d payments", s.holds)
	if err := s.authorize(ctx, over); err != nil {
		return err
	}
	if err := rig.Execute(ctx, s.owner(database), `VACUUM ANALYZE`, `CHECKPOINT`); err != nil {
		return err
	}

	worker, err := process.Start(ctx, s.dir, "worker",
		"DATABASE_URL="+s.postgres.URL("worker", database), "WORKER_PARTS=expiry")
	if err != nil {
		return err
	}
	defer os.Remove(filepath.Join(s.dir, "worker.log"))
	defer worker.Stop()

	if _, err := s.measure(ctx, stretch{name: "alone", open: true, warm: warm}); err != nil {
		return err
	}
	if time.Until(over) < warm {
		return errors.New("the authorizations expire before the measurement: use fewer -holds")
	}
	rig.Wait(ctx, over.Add(-warm))

	var released measured
	var releasedErr error
	var watch sync.WaitGroup
	watch.Go(func() { released, releasedErr = s.released(ctx, database) })
	_, err = s.measure(ctx, stretch{name: "beside", open: true, warm: warm})
	watch.Wait()
	if err := errors.Join(err, releasedErr); err != nil {
		return err
	}

	s.Say("the last hold was released %.1f s after its time", released["released_s"])
	s.figures.add("expiry", released, "")
	s.count(ofExpiry, s.holds)
	return nil
}

// authorize makes the payments whose authorizations expire within a second from over.
func (s *session) authorize(ctx context.Context, over time.Time) error {
	p := newPayments(s.shop, false)
	defer s.count(ofHold, s.holds)
	return s.send(ctx, s.holds, func() []byte {
		return p.authorize(nil, newKey(), time.Until(over.Add(time.Second))) // rounded down to seconds
	})
}

// send sends so many requests over all connections, each of which makes a payment.
func (s *session) send(ctx context.Context, n int, request func() []byte) error {
	var sent atomic.Int64
	errs := make([]error, s.connections)
	var all sync.WaitGroup
	for c := range s.connections {
		all.Go(func() {
			conn, err := net.Dial("tcp", s.api.Addr)
			if err != nil {
				errs[c] = err
				return
			}
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()

			in := bufio.NewReader(conn)
			for sent.Add(1) <= int64(n) {
				got, err := exchange(conn, in, request())
				if err != nil || got.status != 201 {
					errs[c] = errors.Join(err, fmt.Errorf("make a payment: %+v", got))
					return
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// released waits until no authorization is left, and returns how long that took since the last was
// over.
func (s *session) released(ctx context.Context, database string) (measured, error) {
	const left = `SELECT count(*) FROM (SELECT FROM payments WHERE status = 'authorized' LIMIT 1) x`
	for deadline := time.Now().Add(2 * time.Minute); ; rig.Wait(ctx, time.Now().Add(100*time.Millisecond)) {
		n, err := rig.Query[int](ctx, s.owner(database), left)
		switch {
		case err != nil:
			return nil, err
		case n == 0:
			took, err := rig.Query[float64](ctx, s.owner(database), `SELECT extract(epoch FROM max(authorization_ended_at)
				- max(authorization_expires_at))::float8 FROM payments WHERE status = 'expired'`)
			expired, countErr := rig.Query[int](ctx, s.owner(database), `SELECT count(*) FROM payments WHERE status = 'expired'`)
			if expired != s.holds {
				err = errors.Join(err, fmt.Errorf("%d authorizations expired, of %d", expired, s.holds))
			}
			return measured{"released_s": took, "per_s": float64(s.holds) / (took + 1)}, errors.Join(err, countErr)
		case time.Now().After(deadline):
			return nil, errors.New("authorizations are left after 2 minutes")
		}
	}
}
