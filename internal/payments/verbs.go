package payments

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/outbox"
)

// The four verbs, as they are measured and traced.

func (p *Processor) claim(
	ctx context.Context, tx pgx.Tx, keys []idempotency.Request,
) (answers []idempotency.Answer, err error) {
	ctx, end := p.begin(ctx, "claim")
	defer func() { end(err) }()

	if p.OnClaim != nil {
		defer func(start time.Time) { p.OnClaim(time.Since(start)) }(time.Now())
	}
	return idempotency.Claim(ctx, tx, keys, p.Retention)
}

func (p *Processor) execute(
	ctx context.Context, tx pgx.Tx, rs []Request,
) (outcomes []Outcome, err error) {
	ctx, end := p.begin(ctx, "execute")
	defer func() { end(err) }()
	return Execute(ctx, tx, rs)
}

func (p *Processor) append(ctx context.Context, tx pgx.Tx, es []outbox.Event) (err error) {
	ctx, end := p.begin(ctx, "append")
	defer func() { end(err) }()
	return outbox.Append(ctx, tx, es)
}

func (p *Processor) store(
	ctx context.Context, tx pgx.Tx, keys []idempotency.Request, answers []idempotency.Answer,
) (err error) {
	ctx, end := p.begin(ctx, "store")
	defer func() { end(err) }()
	return idempotency.Store(ctx, tx, keys, answers)
}

func (p *Processor) begin(ctx context.Context, verb string) (context.Context, func(error)) {
	if p.OnStep == nil {
		return ctx, func(error) {}
	}
	return p.OnStep(ctx, verb)
}
