package idempotency

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// maxDead is how many connections in a row may be dead at BEGIN: as many as a pool usually has.
const maxDead = 20

// retryBegin tries BEGIN again on another connection when one was dead. A pool does not check a
// connection that was used a moment ago, and the server may have closed it since. Nothing was done
// on it, so the pool discards it and we try the next one. findOutcome retries by itself instead.
type retryBegin struct{ Beginner }

func (b retryBegin) BeginTx(ctx context.Context, o pgx.TxOptions) (tx pgx.Tx, err error) {
	for range maxDead {
		tx, err = b.Beginner.BeginTx(ctx, o)
		if err == nil || ctx.Err() != nil || !connBroken(err) {
			break
		}
	}
	return tx, err
}

// connBroken reports whether an established connection broke during BEGIN. A server that refuses
// connections, or answers with an ERROR and keeps running, would only say the same again.
func connBroken(err error) bool {
	var connect *pgconn.ConnectError
	var e *pgconn.PgError
	var network net.Error

	switch {
	case errors.As(err, &connect):
		return false
	case errors.As(err, &e):
		return e.SeverityUnlocalized == "FATAL"
	}
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
