package webhooks_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

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
