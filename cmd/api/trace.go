package main

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/telemetry"
)

// The spans of a request, below the client's if it sends a traceparent:
//
//	POST /api/v1/payments         the request
//	  commit batch                its transaction, with links to all requests in it
//	    claim, execute, append, store, COMMIT
//
// Where several requests share a transaction, its steps are in the trace of the first one. Each of
// the others has a "commit batch" of its own that links to that one. Nothing here allocates for a
// request that is not traced.

const scope = "api"

// traced starts a span for every request, in its client's trace if there is one. Without exporting,
// it only keeps the client's ids, for the log and the events. Of the path only the route is
// recorded: the path of a key's status contains the key.
func traced(next http.Handler, exporting bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !exporting && r.Header["Traceparent"] == nil {
			next.ServeHTTP(w, r)
			return
		}

		// Two values of traceparent are malformed, as they are when joined; those of tracestate are
		// meant to be.
		ctx := telemetry.FromHeaders(r.Context(), func(name string) string {
			return strings.Join(r.Header.Values(name), ",")
		})
		ctx, span := otel.Tracer(scope).Start(ctx, "HTTP", trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()

		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func untraced(error) {}

// startBatch starts the span of a transaction and returns a function that ends it.
func startBatch(ctx context.Context, rs []payments.Request) (context.Context, func(error)) {
	var links []trace.Link
	for i := range rs {
		if of := telemetry.Remote(rs[i].Headers["traceparent"]); of.IsSampled() {
			links = append(links, trace.Link{SpanContext: of})
		}
	}
	if len(links) == 0 {
		return ctx, untraced
	}
	return startLinked(ctx, links, len(rs))
}

// startLinked is apart from startBatch because what its closure holds is on the heap from the start.
func startLinked(
	ctx context.Context, links []trace.Link, requests int,
) (context.Context, func(error)) {
	const name = "commit batch"
	began := time.Now()
	ctx, batch := otel.Tracer(scope).Start(
		trace.ContextWithSpanContext(ctx, links[0].SpanContext), name,
		trace.WithTimestamp(began), trace.WithLinks(links...),
		trace.WithAttributes(
			attribute.String("db.system.name", "postgresql"), attribute.Int("requests", requests)))

	return ctx, func(err error) {
		telemetry.End(batch, err)
		for _, l := range links[1:] {
			_, span := otel.Tracer(scope).Start(
				trace.ContextWithSpanContext(ctx, l.SpanContext), name,
				trace.WithTimestamp(began), trace.WithLinks(trace.LinkFromContext(ctx)))
			telemetry.End(span, err)
		}
	}
}

// startStep starts the span of a step of a transaction.
func startStep(ctx context.Context, step string) (context.Context, func(error)) {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ctx, untraced
	}

	ctx, span := otel.Tracer(scope).Start(ctx, step, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(
			attribute.String("db.system.name", "postgresql"),
			attribute.String("db.operation.name", step)))
	return ctx, func(err error) { telemetry.End(span, err) }
}

// tracedPool begins transactions whose COMMIT is a step.
type tracedPool struct{ *pgxpool.Pool }

func (p tracedPool) BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error) {
	tx, err := p.Pool.BeginTx(ctx, o)
	if err != nil || !trace.SpanFromContext(ctx).IsRecording() {
		return tx, err
	}
	return tracedTx{tx}, nil
}

type tracedTx struct{ pgx.Tx }

func (t tracedTx) Commit(ctx context.Context) error {
	ctx, end := startStep(ctx, "COMMIT")
	err := t.Tx.Commit(ctx)
	end(err)
	return err
}
