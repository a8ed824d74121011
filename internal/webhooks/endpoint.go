package webhooks

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// EndpointState is whether events are sent to an endpoint.
type EndpointState string

// The states of an endpoint.
const (
	Enabled  EndpointState = "enabled"
	Disabled EndpointState = "disabled" // what is pending waits
	Deleted  EndpointState = "deleted"
)

// Why an endpoint was disabled.
const (
	ReasonGone    = "gone"    // it answered 410
	ReasonFailing = "failing" // nothing has succeeded for GiveUp
)

// EventTypes are those that an endpoint can take.
var EventTypes = []string{
	"payment.processing", "payment.authorized", "payment.completed", "payment.canceled",
	"payment.expired", "payment.declined", "payment.failed",
	"refund.processing", "refund.completed", "refund.declined", "refund.failed",
	EndpointDisabled,
}

const (
	// MaxEndpoints is how many a tenant may have: every event is written and sent once for each.
	MaxEndpoints = 16

	// SecretOverlap is how long a secret is valid beside the one that replaced it.
	SecretOverlap = 24 * time.Hour
)

var (
	// ErrNotFound is returned for an endpoint or delivery that does not exist or is another tenant's.
	ErrNotFound = errors.New("not found")

	// ErrTooMany is returned when a tenant has MaxEndpoints.
	ErrTooMany = errors.New("the tenant has too many webhook endpoints")
)

// Endpoint is where a tenant wants events sent.
type Endpoint struct {
	ID             uuid.UUID     `json:"id"`
	URL            string        `json:"url"`
	EventTypes     []string      `json:"event_types"` // empty: all
	State          EndpointState `json:"state"`
	DisabledReason string        `json:"disabled_reason,omitempty"`
	DisabledAt     *time.Time    `json:"disabled_at,omitempty"`
	FailingSince   *time.Time    `json:"failing_since,omitempty"` // the first failure since a success
	CreatedAt      time.Time     `json:"created_at"`
}

// Secret is an endpoint with its secret, which is shown when it is made and never again.
type Secret struct {
	Endpoint
	Secret string `json:"secret"`

	// PreviousUntil is until when calls are signed with the secret before this one as well.
	PreviousUntil *time.Time `json:"previous_secret_valid_until,omitempty"`
}

const endpointColumns = `e.id, e.url, e.event_types, e.state, e.disabled_reason,
    CASE e.state WHEN 'disabled' THEN e.state_since END, e.failing_since, e.created_at`

// columns returns where to scan endpointColumns to. Call read afterwards.
func (e *Endpoint) columns() []any {
	return []any{&e.ID, &e.URL, &e.EventTypes, &e.State, &e.DisabledReason, &e.DisabledAt,
		&e.FailingSince, &e.CreatedAt}
}

func (e *Endpoint) read() {
	e.CreatedAt = e.CreatedAt.UTC()
	for _, t := range []*time.Time{e.DisabledAt, e.FailingSince} {
		if t != nil {
			*t = t.UTC()
		}
	}
}

// Two creations of a tenant at once would both count what was there before.
const lockTenant = `SELECT pg_advisory_xact_lock(hashtextextended('webhook_endpoints ' || $1::uuid::text, 0))`

const countEndpoints = `SELECT count(*) FROM webhook_endpoints WHERE tenant_id = $1 AND state <> 'deleted'`

const insertEndpoint = `
INSERT INTO webhook_endpoints AS e (id, tenant_id, url, event_types, secret, created_at, state_since)
VALUES ($1, $2, $3, $4, $5, date_trunc('milliseconds', now()), date_trunc('milliseconds', now()))
RETURNING ` + endpointColumns

// Create makes an endpoint that gets what happens from now on. The URL must have passed CheckURL.
func Create(
	ctx context.Context, tx pgx.Tx, tenant uuid.UUID, url string, eventTypes []string,
) (Secret, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return Secret{}, fmt.Errorf("make webhook endpoint id: %w", err)
	}

	// A later statement than the lock: it sees what the holder before us committed.
	if _, err := tx.Exec(ctx, lockTenant, tenant); err != nil {
		return Secret{}, fmt.Errorf("create webhook endpoint: %w", err)
	}
	var n int
	if err := tx.QueryRow(ctx, countEndpoints, tenant).Scan(&n); err != nil {
		return Secret{}, fmt.Errorf("count webhook endpoints: %w", err)
	}
	if n >= MaxEndpoints {
		return Secret{}, ErrTooMany
	}

	// In one order, without repeats.
	types := slices.Compact(slices.Sorted(slices.Values(eventTypes)))
	if types == nil {
		types = []string{}
	}

	s := Secret{Secret: newSecret()}
	err = tx.QueryRow(ctx, insertEndpoint, id, tenant, url, types, s.Secret).Scan(s.columns()...)
	if err != nil {
		return Secret{}, fmt.Errorf("create webhook endpoint: %w", err)
	}
	s.read()
	return s, nil
}

// newSecret returns 256 random bits in the form that libraries of Standard Webhooks take.
func newSecret() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return "whsec_" + base64.StdEncoding.EncodeToString(b)
}

const selectEndpoint = `
SELECT ` + endpointColumns + ` FROM webhook_endpoints e
WHERE id = $2 AND tenant_id = $1 AND state <> 'deleted'`

// Find returns an endpoint of the tenant, or ErrNotFound.
func Find(ctx context.Context, tx pgx.Tx, tenant, id uuid.UUID) (Endpoint, error) {
	return endpoint(ctx, tx, "find", selectEndpoint, tenant, id)
}

const selectEndpoints = `
SELECT ` + endpointColumns + ` FROM webhook_endpoints e
WHERE tenant_id = $1 AND state <> 'deleted' ORDER BY id DESC`

// List returns the endpoints of the tenant, newest first. There are MaxEndpoints at most.
func List(ctx context.Context, tx pgx.Tx, tenant uuid.UUID) ([]Endpoint, error) {
	rows, _ := tx.Query(ctx, selectEndpoints, tenant) // CollectRows has the query's error, too
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Endpoint, err error) {
		err = row.Scan(e.columns()...)
		e.read()
		return e, err
	})
	if err != nil {
		return nil, fmt.Errorf("list webhook endpoints: %w", err)
	}
	return all, nil
}

// The row stays until the worker has deleted its deliveries. One that is deleted already is found,
// for the repeat of a call whose answer was lost.
const deleteEndpoint = `
UPDATE webhook_endpoints e
SET state = 'deleted', disabled_reason = '', failing_since = NULL, resuming = false,
    state_since = CASE state WHEN 'deleted' THEN state_since ELSE date_trunc('milliseconds', now()) END,
    secret = '', previous_secret = NULL, previous_until = NULL
WHERE tenant_id = $1 AND id = $2
RETURNING ` + endpointColumns

// Delete ends an endpoint: calls in flight finish, nothing else is sent.
func Delete(ctx context.Context, tx pgx.Tx, tenant, id uuid.UUID) (Endpoint, error) {
	return endpoint(ctx, tx, "delete", deleteEndpoint, tenant, id)
}

const enableEndpoint = `
UPDATE webhook_endpoints e
SET state = 'enabled', disabled_reason = '',
    failing_since = CASE state WHEN 'enabled' THEN failing_since END,
    state_since = CASE state WHEN 'enabled' THEN state_since ELSE date_trunc('milliseconds', now()) END,
    resuming = resuming OR state = 'disabled'
WHERE tenant_id = $1 AND id = $2 AND state <> 'deleted'
RETURNING ` + endpointColumns

// Enable makes a disabled endpoint get events again, first what is pending. It changes nothing else
// about one that is enabled.
func Enable(ctx context.Context, tx pgx.Tx, tenant, id uuid.UUID) (Endpoint, error) {
	return endpoint(ctx, tx, "enable", enableEndpoint, tenant, id)
}

// Two secrets at most are valid: of two rotations in a row, the first one's predecessor is gone.
const rotateSecret = `
UPDATE webhook_endpoints e
SET secret = $3, previous_secret = secret,
    previous_until = date_trunc('milliseconds', now()) + $4::interval
WHERE tenant_id = $1 AND id = $2 AND state <> 'deleted'
RETURNING previous_until, ` + endpointColumns

// Rotate gives an endpoint a new secret. The old one is valid for SecretOverlap as well.
func Rotate(ctx context.Context, tx pgx.Tx, tenant, id uuid.UUID) (Secret, error) {
	s := Secret{Secret: newSecret()}
	err := tx.QueryRow(ctx, rotateSecret, tenant, id, s.Secret, SecretOverlap).
		Scan(append([]any{&s.PreviousUntil}, s.columns()...)...)
	if err != nil {
		return Secret{}, fmt.Errorf("rotate secret of webhook endpoint: %w", notFound(err))
	}

	*s.PreviousUntil = s.PreviousUntil.UTC()
	s.read()
	return s, nil
}

// endpoint runs a statement that returns one endpoint of the tenant.
func endpoint(
	ctx context.Context, tx pgx.Tx, what, sql string, tenant, id uuid.UUID,
) (e Endpoint, err error) {
	if err := tx.QueryRow(ctx, sql, tenant, id).Scan(e.columns()...); err != nil {
		return Endpoint{}, fmt.Errorf("%s webhook endpoint: %w", what, notFound(err))
	}
	e.read()
	return e, nil
}

func notFound(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrNotFound
	}
	return err
}
