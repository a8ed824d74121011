package webhooks_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/internal/webhooks"
)

// What is pending of a tenant that leaves for another cluster is sent there, not here as well.
func TestNothingIsSentForATenantThatLeaves(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	other := *b
	other.tenant = uuid.New()
	here, there := receive(t, ok), receive(t, ok)
	b.endpoint(t, here.URL)
	other.endpoint(t, there.URL)
	b.exec(t, `INSERT INTO tenants (id, name) VALUES ($1, 'leaves')`, b.tenant)
	b.exec(t, `INSERT INTO tenant_moves (tenant_id, target) VALUES ($1, '')`, b.tenant)

	b.write(t, b.event(uuid.New(), 1))
	b.write(t, other.event(uuid.New(), 1))
	stop := b.sending(t)
	there.has(t, 1) // it came later
	stop()
	if n := len(here.calls()); n != 0 {
		t.Errorf("%d calls", n)
	}

	// Nor is a worker in alarm for good about what it must not send.
	waits := func() (time.Duration, bool) {
		oldest, _, err := webhooks.Backlog(t.Context(), b.worker)
		if err != nil {
			t.Fatal(err)
		}
		since, _, err := webhooks.Due(t.Context(), b.worker)
		if err != nil {
			t.Fatal(err)
		}
		return oldest, !since.IsZero()
	}
	if oldest, due := waits(); oldest != 0 || due {
		t.Errorf("a webhook has waited for %s; one is due: %t", oldest, due)
	}

	b.exec(t, `DELETE FROM tenant_moves`)
	if oldest, due := waits(); oldest == 0 || !due {
		t.Errorf("it stays, and a webhook has waited for %s; one is due: %t", oldest, due)
	}
	b.sending(t)
	here.has(t, 1)
}

// The move does not wait for a sender that was frozen for longer than its lease. What the sender notes
// when it wakes would have the version of what the next cluster notes.
func TestAnEndpointThatMovesIsNotDisabledHere(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := receive(t, func(n int, _ received) int {
		if n == 0 { // it leaves while the call is on its way
			if _, err := b.owner.Exec(t.Context(), `INSERT INTO tenant_moves (tenant_id, target) VALUES ($1, '')`, b.tenant); err != nil {
				t.Error(err)
			}
		}
		return http.StatusGone
	})
	b.exec(t, `INSERT INTO tenants (id, name) VALUES ($1, 'leaves')`, b.tenant)
	e := b.endpoint(t, r.URL)
	b.write(t, b.event(uuid.New(), 1))
	b.sending(t)
	answers := func(n int) {
		t.Helper()
		testenv.Eventually(t, soon, func() error {
			if d := b.deliveries(t, e.ID)[0]; d.Tries != n {
				return fmt.Errorf("%+v", d)
			}
			return nil
		})
	}

	answers(1)
	if got := b.find(t, e.ID); got.State != webhooks.Enabled || got.FailingSince != nil {
		t.Errorf("it moves: %+v", got)
	}
	if n := b.disabledEvents(t); n != 0 {
		t.Errorf("it moves: %d events", n)
	}

	b.exec(t, `DELETE FROM tenant_moves`)
	answers(2)
	if got := b.find(t, e.ID); got.DisabledReason != webhooks.ReasonGone {
		t.Errorf("it stays: %+v", got)
	}
	if n := b.disabledEvents(t); n != 1 {
		t.Errorf("it stays: %d events", n)
	}
}

// A sender that was held up after its claim leaves the call to the next claim.
func TestLateClaimIsNotCalled(t *testing.T) {
	t.Parallel()
	b, r := newBench(t), receive(t, ok)
	b.endpoint(t, r.URL)
	b.write(t, b.event(uuid.New(), 1))

	tx, err := b.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `LOCK webhook_deliveries`); err != nil {
		t.Fatal(err)
	}
	b.run(t, &webhooks.Sender{Timeout: time.Second}) // so a claim lasts 3 s
	testenv.Eventually(t, soon, func() error {
		if b.count(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'worker'
			AND wait_event_type = 'Lock' AND query_start < clock_timestamp() - interval '2.5 seconds'`) == 0 {
			return fmt.Errorf("no claim has waited")
		}
		return nil
	})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}

	b.sent(t)
	if n := b.count(t, `SELECT token FROM webhook_deliveries`); n < 2 {
		t.Error("the first claim was called although its time was over")
	}
}
