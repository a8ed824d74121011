package webhooks_test

import (
	"testing"

	"github.com/google/uuid"
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

	b.exec(t, `DELETE FROM tenant_moves`)
	b.sending(t)
	here.has(t, 1)
}
