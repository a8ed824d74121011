package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

// work is what a POST beside payments asks for.
type work struct {
	canonical []byte // of the body: the same bytes for all bodies that ask for the same
	do        func(context.Context, pgx.Tx) (result, error)
}

// result is what the work came to. It is stored under the key.
type result struct {
	status   int
	location string
	body     any
}

// under handles a POST that has a transaction of its own, beside group commit: it is rare. The protocol
// is that of post. names are those of the ids in the route. A refusal by do is rolled back and not
// stored: the key stays free.
func (s *server) under(
	c *call, route string, names []string, decode func(ids []uuid.UUID, body []byte) (work, error),
) (response, error) {
	if c.keyErr != nil {
		c.observe.Outcome = "invalid"
		return response{}, c.keyErr
	}

	// Everything the client sent is read and checked before any transaction begins.
	var ids []uuid.UUID
	var params []string
	for _, name := range names {
		id, err := c.pathUUID(name)
		if err != nil {
			return response{}, err
		}
		ids, params = append(ids, id), append(params, id.String())
	}
	body, err := readBody(c.Request)
	if err != nil {
		return response{}, err
	}
	w, err := decode(ids, body)
	if err != nil {
		return response{}, err
	}

	wait, asked := preferredWait(c.Header)
	if asked {
		c.header.Set("Preference-Applied", "wait="+strconv.Itoa(int(wait.Seconds())))
	}

	fingerprint := idempotency.NewFingerprint(c.tenant(), http.MethodPost, route, params, w.canonical)
	r := idempotency.Request{
		TenantID: c.tenant(), ClientID: c.identity.ClientID, Key: c.key, RequestID: c.id,
		Fingerprint: fingerprint,
	}
	a, err := s.runUntil(c.Context(), r, w, time.Now().Add(wait))
	if a.State != 0 {
		c.observe.Outcome = a.State.String()
	}
	if err != nil {
		return response{}, webhookProblem(err)
	}
	return answered(c.header, a)
}

// runUntil runs the work, again when another attempt under the key was in progress and is over.
func (s *server) runUntil(
	ctx context.Context, r idempotency.Request, w work, until time.Time,
) (idempotency.Answer, error) {
	for {
		a, err := s.runOnce(ctx, r, w)
		if err != nil || a.State != idempotency.InProgress {
			return a, err
		}
		if again, err := s.awaitOther(ctx, r, until); !again {
			return a, err
		}
	}
}

// runOnce runs the work if the request is admitted. Otherwise a finished key still gets its replay.
func (s *server) runOnce(
	ctx context.Context, r idempotency.Request, w work,
) (idempotency.Answer, error) {
	place, err := s.admission.work(ctx, r.TenantID, r.ClientID)

	var refusal *problem
	switch {
	case errors.As(err, &refusal):
		return s.replayOr(ctx, r, refusal)
	case err != nil:
		return idempotency.Answer{}, err
	}
	defer place.leave()

	a, err := idempotency.Run(ctx, s.Write, r, s.Retention,
		func(ctx context.Context, tx pgx.Tx) (idempotency.Response, error) {
			if err := payments.Stays(ctx, tx, r.TenantID); err != nil {
				return idempotency.Response{}, err
			}
			v, err := w.do(ctx, tx)
			if err != nil {
				return idempotency.Response{}, err
			}
			return idempotency.Response{
				Status: v.status, ContentType: applicationJSON, Location: v.location, Body: encode(v.body),
			}, nil
		})
	if err != nil || a.State != idempotency.New {
		place.refund() // nothing was executed
	}
	return a, err
}
