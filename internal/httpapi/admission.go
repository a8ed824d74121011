package httpapi

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// admission decides whether a request may be worked on now. A client has a rate of executed
// requests, a tenant a share of the requests in progress, of look-ups beyond either, and of the
// read pool.
type admission struct {
	rates   *limits
	shares  *shares
	lookUps *turns
	reads   *turns
}

func newAdmission(rate float64, tenantMax, readConnections int) *admission {
	return &admission{
		rates:   newLimits(rate, time.Now),
		shares:  newShares(tenantMax, time.Now),
		lookUps: newLookUps(),
		reads:   newReads(readConnections),
	}
}

// place is the admission of one request. Leave it when the request is over.
type place struct {
	admission      *admission
	tenant, client uuid.UUID
}

func (p place) leave() { p.admission.shares.giveBack(p.tenant) }

// refund returns the token that a request took from its client's rate, because nothing was
// executed.
func (p place) refund() { p.admission.rates.giveBack(p.client) }

// work admits a request that will execute something, after waiting for the tenant's requests before
// it. A *problem refuses it: the client is over its rate or the tenant over its share.
func (a *admission) work(ctx context.Context, tenant, client uuid.UUID) (place, error) {
	p := place{a, tenant, client}

	if wait := a.rates.take(client); wait > 0 {
		return place{}, refuse("rate-limited",
			"Nothing was done. Repeat the identical request later.").with("Retry-After", seconds(wait))
	}

	// Neither error of take executes anything, so the token goes back.
	err := a.shares.take(ctx, tenant)
	if err != nil {
		p.refund()
	}

	if errors.Is(err, errTooMany) {
		return place{}, refuse("rate-limited", "Nothing was done: this tenant has too many requests "+
			"in progress. Repeat the identical request later.").later()
	}
	return p, err
}

// lookUp admits a request that only looks its key up, after waiting for its turn; nil: it did not get
// one in time.
func (a *admission) lookUp(ctx context.Context, tenant uuid.UUID) (done func()) {
	return a.lookUps.take(ctx, tenant)
}

// read admits a request that reads through the read pool, after waiting for its turn.
func (a *admission) read(ctx context.Context, tenant uuid.UUID) (done func(), err error) {
	if done = a.reads.take(ctx, tenant); done == nil {
		return nil, refuse("rate-limited",
			"This tenant has too many reads in progress. Repeat the request later.").later()
	}
	return done, nil
}

// seconds rounds up: a client that comes a moment too early is refused again.
func seconds(d time.Duration) string {
	return strconv.Itoa(int((d + time.Second - 1) / time.Second))
}
