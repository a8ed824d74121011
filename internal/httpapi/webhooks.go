package httpapi

import (
	"context"
	"errors"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/webhooks"
)

const (
	endpointsPath = "/api/v1/webhook-endpoints"
	endpointPath  = endpointsPath + "/{id}"
	redeliverPath = endpointPath + "/deliveries/{delivery}/redeliver"
)

func (s *server) routeWebhooks(r chi.Router) {
	r.Post(endpointsPath, s.private(s.createEndpoint))
	r.Get(endpointsPath, s.private(s.listEndpoints))
	r.Get(endpointPath, s.private(s.getEndpoint))
	r.Delete(endpointPath, s.private(s.deleteEndpoint))
	r.Post(endpointPath+"/rotate-secret", s.private(s.rotateSecret))
	r.Post(endpointPath+"/enable", s.private(s.enableEndpoint))
	r.Get(endpointPath+"/deliveries", s.private(s.listDeliveries))
	r.Post(redeliverPath, s.private(s.redeliver))
}

func (s *server) createEndpoint(c *call) (response, error) {
	return s.under(c, endpointsPath, nil, func(_ []uuid.UUID, body []byte) (work, error) {
		o, err := s.decodeEndpoint(body)
		if err != nil {
			return work{}, err
		}

		return work{canonical: encode(o), do: func(ctx context.Context, tx pgx.Tx) (result, error) {
			e, err := webhooks.Create(ctx, tx, c.tenant(), o.URL, o.EventTypes)
			if err != nil {
				return result{}, err
			}
			return result{http.StatusCreated, endpointsPath + "/" + e.ID.String(), e}, nil
		}}, nil
	})
}

func (s *server) rotateSecret(c *call) (response, error) {
	return changeEndpoint(c, s, endpointPath+"/rotate-secret", webhooks.Rotate)
}

func (s *server) enableEndpoint(c *call) (response, error) {
	return changeEndpoint(c, s, endpointPath+"/enable", webhooks.Enable)
}

// changeEndpoint handles a POST that needs nothing but {id}.
func changeEndpoint[T any](
	c *call, s *server, route string,
	change func(ctx context.Context, tx pgx.Tx, tenant, id uuid.UUID) (T, error),
) (response, error) {
	return s.under(c, route, []string{"id"}, func(ids []uuid.UUID, body []byte) (work, error) {
		do := func(ctx context.Context, tx pgx.Tx) (result, error) {
			v, err := change(ctx, tx, c.tenant(), ids[0])
			return result{http.StatusOK, "", v}, err
		}
		return work{[]byte("{}"), do}, decodeNothing(body)
	})
}

func (s *server) redeliver(c *call) (response, error) {
	names := []string{"id", "delivery"}
	return s.under(c, redeliverPath, names, func(ids []uuid.UUID, body []byte) (work, error) {
		do := func(ctx context.Context, tx pgx.Tx) (result, error) {
			d, err := webhooks.Redeliver(ctx, tx, c.tenant(), ids[0], ids[1])
			return result{http.StatusOK, "", d}, err
		}
		return work{[]byte("{}"), do}, decodeNothing(body)
	})
}

// deleteEndpoint needs no key: a repeat finds the endpoint deleted and gets the same answer, for a day
// at least.
func (s *server) deleteEndpoint(c *call) (response, error) {
	id, err := c.pathID()
	if err != nil {
		return response{}, err
	}
	if _, err := newQuery(c.Request); err != nil {
		return response{}, err
	}

	place, err := s.admission.work(c.Context(), c.tenant(), c.identity.ClientID)
	if err != nil {
		return response{}, err
	}
	defer place.leave()

	// CommitOnce, although there is no key: a second attempt finds out what became of a COMMIT whose
	// reply was lost.
	var e webhooks.Endpoint
	attempt := func(ctx context.Context, tx pgx.Tx) (_ []idempotency.Answer, err error) {
		if err := payments.Stays(ctx, tx, c.tenant()); err != nil {
			return nil, err
		}
		e, err = webhooks.Delete(ctx, tx, c.tenant(), id)
		return nil, err
	}
	if _, err := idempotency.CommitOnce(c.Context(), s.Write, attempt); err != nil {
		return response{}, webhookProblem(err)
	}
	return ok(e), nil
}

func (s *server) getEndpoint(c *call) (response, error) {
	e, err := readOne(c, s, webhooks.Find)
	if err != nil {
		return response{}, webhookProblem(err)
	}
	return ok(e), nil
}

// listEndpoints has one page: a tenant has few of them.
func (s *server) listEndpoints(c *call) (response, error) {
	if _, err := newQuery(c.Request); err != nil {
		return response{}, err
	}

	all, err := read(c, s, func(tx pgx.Tx) ([]webhooks.Endpoint, error) {
		return webhooks.List(c.Context(), tx, c.tenant())
	})
	if err != nil {
		return response{}, err
	}
	return ok(cut(all, webhooks.MaxEndpoints, nil)), nil
}

func (s *server) listDeliveries(c *call) (response, error) {
	id, err := c.pathID()
	if err != nil {
		return response{}, err
	}
	q, err := newQuery(c.Request, "limit", "cursor")
	if err != nil {
		return response{}, err
	}
	limit := q.limit()
	if err := q.err(); err != nil {
		return response{}, err
	}

	before := uuid.Max
	if cursor := q.cursor(); cursor != nil {
		if before, err = paymentCursor(*cursor); err != nil {
			return response{}, err
		}
	}

	found, err := read(c, s, func(tx pgx.Tx) ([]webhooks.Delivery, error) {
		return webhooks.ListDeliveries(c.Context(), tx, c.tenant(), id, before, limit+1)
	})
	if err != nil {
		return response{}, webhookProblem(err)
	}
	next := func(last webhooks.Delivery) string { return last.ID.String() }
	return ok(cut(found, limit, next)), nil
}

// webhookProblem gives the errors of package webhooks their problems; others pass.
func webhookProblem(err error) error {
	switch {
	case errors.Is(err, webhooks.ErrNotFound):
		return errNotFound
	case errors.Is(err, webhooks.ErrTooMany):
		return refuse("too-many-webhook-endpoints",
			"A tenant has %d webhook endpoints at most. Delete one first.", webhooks.MaxEndpoints)
	}
	return err
}
