package idempotency

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Advanced: what makes a COMMIT as durable as the server promises, and tells when it may not be.

// errWarned is a COMMIT that the server answered with success, after a warning.
var errWarned = errors.New("the server warned during COMMIT: its standby may be missing it")

// commit sends COMMIT and waits for the reply, for at most commitTimeout. After that the server may
// still finish it.
func commit(ctx context.Context, tx pgx.Tx) error {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()

	// Before Commit: a pool takes the connection back there, and may hand it to another caller.
	conn := tx.Conn()
	forbidCancel(conn)
	warned := listen(conn)

	if err := tx.Commit(ctx); err != nil {
		return err
	}

	if warned.Load() {
		return errWarned
	}
	return nil
}

// Keys of a connection's CustomData.
const (
	keyOf      = "oncepay.idempotency.secret_key" // []byte
	listenerOf = "oncepay.idempotency.listener"   // *atomic.Bool
)

// forbidCancel blanks the secret without which the server ignores a cancel request. The driver
// sends one for every connection it gives up, after a deadline as after a lost reply. A COMMIT that
// waits for its standby would heed it: it would end without the standby and become visible,
// although a failover takes it back.
func forbidCancel(conn *pgx.Conn) {
	if conn == nil || conn.IsClosed() { // when closed, the driver may be reading the secret
		return
	}

	// Kept for allowCancel, the first time only: afterwards it is blank.
	c := conn.PgConn()
	if _, kept := c.CustomData()[keyOf]; !kept {
		c.CustomData()[keyOf] = bytes.Clone(c.SecretKey())
	}
	clear(c.SecretKey())
}

// allowCancel undoes forbidCancel for the connection's next transaction: when an attempt is given
// up, its statements must end on the server, and its locks with them.
func allowCancel(conn *pgx.Conn) {
	if conn == nil {
		return
	}

	if key, kept := conn.PgConn().CustomData()[keyOf].([]byte); kept {
		copy(conn.PgConn().SecretKey(), key)
	}
}

// listen returns a flag that OnNotice raises. Each COMMIT has its own, and it is atomic: by the
// time COMMIT returns, a pool may have given the connection to another caller.
func listen(conn *pgx.Conn) *atomic.Bool {
	warned := new(atomic.Bool)
	if conn != nil {
		conn.PgConn().CustomData()[listenerOf] = warned
	}
	return warned
}

// OnNotice must be the pgconn.Config.OnNotice of every connection that CommitOnce uses. When an
// operator cancels a COMMIT that waits for its synchronous standby, the server reports success, and
// only a warning says that the standby does not have it. CommitOnce then treats the outcome as
// unknown.
//
// Every warning during a COMMIT counts, since this one has no SQLSTATE of its own (01000 is any
// warning) and its text is translated. A false alarm costs another look at the key. A missed one
// costs a payment that was confirmed and that a failover takes back.
func OnNotice(c *pgconn.PgConn, n *pgconn.Notice) {
	warned, ok := c.CustomData()[listenerOf].(*atomic.Bool)
	if ok && n.SeverityUnlocalized == "WARNING" {
		warned.Store(true)
	}
}

// definite reports whether an error of COMMIT proves that nothing was committed: the server itself
// said so and kept running. Every other error leaves it open: a lost connection, a deadline, a
// FATAL from a server that shut down while it waited for its standby. pgx's SafeToRetry does not
// help: it is true for a COMMIT whose reply was lost.
func definite(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return true
	}

	var e *pgconn.PgError
	return errors.As(err, &e) && e.SeverityUnlocalized == "ERROR"
}

// A row may be visible and yet not be on the standby, if its own COMMIT was interrupted while it
// waited. The COMMIT of a transaction that only read the row does not wait. With something to write
// it does, and at a later place in the log than the row's.
const writeForStandby = `
SELECT pg_logical_emit_message(true, 'idempotency', 'replay')
WHERE current_setting('synchronous_standby_names') <> ''`

// onlyReplays reports whether the transaction promises what it read but has written nothing itself.
func onlyReplays(as []Answer) (replays bool) {
	for _, a := range as {
		if a.State == New {
			return false
		}

		replays = replays || a.State == Replay
	}
	return replays
}
