// Package plans explains every statement that a request and its event cost, as it was really sent, on an empty database and on a big
// one. Nobody keeps a list of statements: a tracer in the pools writes down what the API, the relay and the consumer send while they
// are used, and what stands in their sources but was not sent is a failure.
package plans

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

// statement is one that was sent.
type statement struct {
	begin string // how its transaction began, the tenant of row-level security included
	sql   string
	args  []any
}

// recorder is a tracer that writes down what is sent through a pool.
type recorder struct {
	mu    sync.Mutex
	begun map[*pgx.Conn]string
	sent  []statement
}

var (
	_ pgx.QueryTracer = (*recorder)(nil)
	_ pgx.BatchTracer = (*recorder)(nil)
)

func newRecorder() *recorder { return &recorder{begun: map[*pgx.Conn]string{}} }

func (r *recorder) trace(c *pgx.ConnConfig) { c.Tracer = r }

func (r *recorder) TraceQueryStart(ctx context.Context, conn *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	r.add(conn, d.SQL, d.Args)
	return ctx
}

func (r *recorder) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (r *recorder) TraceBatchStart(ctx context.Context, conn *pgx.Conn, d pgx.TraceBatchStartData) context.Context {
	for _, q := range d.Batch.QueuedQueries {
		r.add(conn, q.SQL, q.Arguments)
	}
	return ctx
}

func (r *recorder) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (r *recorder) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (r *recorder) add(conn *pgx.Conn, sql string, args []any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch verb, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(sql)), " "); verb {
	case "begin":
		r.begun[conn] = sql
	case "commit", "rollback":
		delete(r.begun, conn)
	case "set", "--": // of a connection; a ping
	default:
		begin := r.begun[conn]
		if begin == "" {
			begin = "BEGIN"
		}
		if len(args) > 0 {
			if _, option := args[0].(pgx.QueryResultFormats); option {
				args = args[1:] // of the driver, not of the statement
			}
		}
		s := statement{begin, sql, args}
		if n := len(r.sent); n == 0 || !reflect.DeepEqual(r.sent[n-1], s) { // the relay asks the same again and again
			r.sent = append(r.sent, s)
		}
	}
}

// has returns an error while no statement with that text in it was sent.
func (r *recorder) has(text string) error {
	for _, s := range r.all() {
		if strings.Contains(s.sql, text) {
			return nil
		}
	}
	return fmt.Errorf("no statement with %q was sent", text)
}

// all returns what was sent until now.
func (r *recorder) all() []statement {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.sent)
}
