package migrations

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// A migration that waits for a table's lock makes every payment on the table queue behind it. So it waits for a short
// time, gives up, lets the queue go on, and tries again: payments lose a fifth of the time at most, and none of them
// reaches its own lock_timeout of two seconds.
const (
	lockTimeout = 500 * time.Millisecond
	lockPause   = 4 * lockTimeout
)

// Locks says how long to try for the locks of tables that others use.
type Locks struct {
	Wait   time.Duration    // for each file; 0: 5 minutes
	OnWait func(who string) // called before each pause with who is in the way; may be nil
}

const defaultWait = 5 * time.Minute

// Up applies what is missing to the database at url, one file after the other, each in a transaction, and returns
// what it applied. Any number of callers may run at once: a lock in the database lets one of them work.
func Up(ctx context.Context, url string) ([]Migration, error) { return UpWith(ctx, url, Locks{}) }

// UpWith is Up with a patience of its own.
func UpWith(ctx context.Context, url string, locks Locks) (done []Migration, err error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))

	if locks.Wait == 0 {
		locks.Wait = defaultWait
	}
	u := &up{cfg: cfg, conn: conn, locks: locks}
	var before int64
	for {
		next, found, err := u.next(ctx)
		if err != nil || !found {
			return done, err
		}

		switch err := u.apply(ctx, next); {
		case errors.Is(err, goose.ErrAlreadyApplied) && before != next.version: // by another caller
			before = next.version
		case err != nil:
			return done, err
		default:
			done = append(done, Migration{Version: next.version, Name: next.name, Applied: time.Now()})
		}
	}
}

type up struct {
	cfg   *pgx.ConnConfig
	conn  *pgx.Conn // looks, and changes nothing
	locks Locks
}

// next returns the first file that is not applied.
func (u *up) next(ctx context.Context) (next file, found bool, err error) {
	all, err := Status(ctx, u.conn)
	if err != nil {
		return next, false, err
	}
	if err := Drift(all); err != nil {
		return next, false, err
	}

	for i, f := range files() {
		switch {
		case all[i].Applied.IsZero() && !found:
			next, found = f, true
		case !all[i].Applied.IsZero() && found:
			return next, false, fmt.Errorf("%w: %s is applied, %s before it is not", ErrOutOfStep, f.name, next.name)
		}
	}
	return next, found, nil
}

// apply applies one file. It tries until it has its locks.
func (u *up) apply(ctx context.Context, f file) error {
	start := time.Now()
	for {
		who, err := u.attempt(ctx, f)
		if err == nil || !locked(err) {
			return err
		}

		who = f.name + " " + who
		if time.Since(start)+lockPause > u.locks.Wait {
			return fmt.Errorf("gave up after %s: %s: end that transaction and run `migrate up` again",
				time.Since(start).Round(time.Second), who)
		}
		if u.locks.OnWait != nil {
			u.locks.OnWait(who)
		}

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lockPause):
		}
	}
}

// locked reports whether err is that of a lock that somebody else kept, or of a deadlock.
func locked(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == "55P03" || e.Code == "40P01")
}

// attempt tries once, and returns who was in the way if there was no lock.
func (u *up) attempt(ctx context.Context, f file) (who string, err error) {
	// What runs outside a transaction builds indexes CONCURRENTLY: it waits for old transactions to end, and no payment
	// waits behind it.
	timeout := lockTimeout
	if f.concurrent() {
		timeout = max(timeout, u.locks.Wait)
	}
	cfg := u.cfg.Copy()
	cfg.RuntimeParams["lock_timeout"] = strconv.FormatInt(timeout.Milliseconds(), 10)

	// goose works on a single connection.
	var pid atomic.Uint32
	db := stdlib.OpenDB(*cfg, stdlib.OptionAfterConnect(func(_ context.Context, c *pgx.Conn) error {
		pid.Store(c.PgConn().PID())
		return nil
	}))
	defer db.Close()

	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(5, 12*60*6)) // 6 h: indexes take long
	if err != nil {
		return "", fmt.Errorf("make migration lock: %w", err)
	}
	rows, err := newStore()
	if err != nil {
		return "", fmt.Errorf("open version table: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectCustom, db, FS,
		goose.WithStore(rows), goose.WithSessionLocker(locker))
	if err != nil {
		return "", fmt.Errorf("read migrations: %w", err)
	}

	stop, seen := make(chan struct{}), make(chan string, 1)
	go func() { seen <- u.watch(ctx, &pid, stop) }()
	_, err = provider.ApplyVersion(ctx, f.version, true)
	close(stop)
	return <-seen, err
}
