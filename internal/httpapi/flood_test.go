package httpapi_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/groupcommit"
	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/testenv"
)

// Of 50 requests, 32 are with the committers, and the neighbour's comes right behind these.
func TestATenantThatFloodsWaitsBehindItselfAndAllOfItIsDone(t *testing.T) {
	t.Parallel()
	const flood, let = 50, 32
	g := startGrouped(t, groupcommit.Options{Committers: 1}, func(o *httpapi.Options) { o.TenantMax = flood })
	flooder, neighbour := g.caller, g.newTenant(t)
	create := func(c caller) func() answer {
		return func() answer { return c.post(t, "/api/v1/accounts", `{"currency":"USD"}`) }
	}
	create(neighbour)().wantStatus(t, http.StatusCreated)
	open := g.shut(t)
	before := g.begun.Load()
	answers := []<-chan answer{later(create(flooder))}
	testenv.Eventually(t, 10*time.Second, equal(before+1, g.begun.Load)) // alone in its batch
	for range flood - 1 {
		answers = append(answers, later(create(flooder)))
	}
	testenv.Eventually(t, 10*time.Second, equal(let-1, g.group.Load().Waiting))
	answers = append(answers, later(create(neighbour)))
	testenv.Eventually(t, 10*time.Second, equal(let, g.group.Load().Waiting))
	open()
	for _, a := range answers {
		(<-a).wantStatus(t, http.StatusCreated)
	}
}
