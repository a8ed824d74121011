package idempotency

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errWarned is a COMMIT that the server answered with success, after a warning.
var errWarned = errors.New("the server warned: it may have stopped waiting for its standby")

// commit sends COMMIT and waits for the answer, but not for longer than commitTimeout. Then it leaves, and the server goes on.
func commit(ctx context.Context, tx pgx.Tx) error {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	conn := tx.Conn() // a pool's transaction has none after Commit, and the connection may be somebody else's
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

// What a connection of Settle has in its CustomData.
const (
	keyOf      = "oncepay.idempotency.secret_key" // []byte
	listenerOf = "oncepay.idempotency.listener"   // *atomic.Bool
)

// forbidCancel blanks the key without which the server ignores a request to cancel. The driver sends one for every
// connection that it gives up, after a deadline as after a lost reply, and whoever closed the socket. A COMMIT that waits
// for its standby would heed it: it would end without the standby and show everybody what a failover takes back.
func forbidCancel(conn *pgx.Conn) {
	if conn == nil || conn.IsClosed() { // when closed, the driver may be reading it
		return
	}
	c := conn.PgConn()
	if _, kept := c.CustomData()[keyOf]; !kept {
		c.CustomData()[keyOf] = bytes.Clone(c.SecretKey())
	}
	clear(c.SecretKey())
}

// allowCancel undoes forbidCancel for a connection's next transaction: the statements of an attempt that is given up are
// to end, and with them its locks.
func allowCancel(conn *pgx.Conn) {
	if conn == nil {
		return
	}
	if key, kept := conn.PgConn().CustomData()[keyOf].([]byte); kept {
		copy(conn.PgConn().SecretKey(), key)
	}
}

// listen returns a flag that OnNotice raises. Each COMMIT has its own, and it is atomic: when COMMIT returns, a pool may
// already have given the connection to somebody else.
func listen(conn *pgx.Conn) *atomic.Bool {
	warned := new(atomic.Bool)
	if conn != nil {
		conn.PgConn().CustomData()[listenerOf] = warned
	}
	return warned
}

// OnNotice belongs in the configuration of every connection that Settle works on, as pgconn.Config.OnNotice: when an operator
// cancels a COMMIT that waits for its synchronous standby, the server answers with success, and that it is not on the
// standby only a warning says. Settle then treats the outcome as unknown.
//
// Every warning during a COMMIT counts. This one has no SQLSTATE of its own (01000 is any warning) and its text is
// translated. One too many costs another look at the key; one too few, a payment that was promised and that a failover
// takes back.
func OnNotice(c *pgconn.PgConn, n *pgconn.Notice) {
	if warned, ok := c.CustomData()[listenerOf].(*atomic.Bool); ok && n.SeverityUnlocalized == "WARNING" {
		warned.Store(true)
	}
}

// definite says whether an error of COMMIT tells that nothing was committed: the server itself said so, and went on
// living. Every other error (a lost connection, a deadline, a FATAL of a server that shut down while it waited for its
// standby) leaves it open. pgx's SafeToRetry is no guide here: it is true for a COMMIT whose reply was lost.
func definite(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return true
	}
	var e *pgconn.PgError
	return errors.As(err, &e) && e.SeverityUnlocalized == "ERROR"
}

// A row may be visible and yet not be on the standby, when the wait of its own COMMIT was broken off. The COMMIT of a
// transaction that only read it does not wait; with something to write it does, at a later place in the log than the row's.
const writeForStandby = `
SELECT pg_logical_emit_message(true, 'idempotency', 'replay') WHERE current_setting('synchronous_standby_names') <> ''`

// onlyReplays says whether the transaction is about to promise what it read and has itself written nothing.
func onlyReplays(as []Answer) (replays bool) {
	for _, a := range as {
		if a.State == New {
			return false
		}
		replays = replays || a.State == Replay
	}
	return replays
}
