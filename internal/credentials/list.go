package credentials

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Tenant is a tenant as an operator sees it.
type Tenant struct {
	ID        uuid.UUID `json:"id"`
	Name      string    `json:"name"`
	Clients   int       `json:"clients"` // how many it has
	Move      string    `json:"move"`    // leaving or left, and the target; empty: it is served here
	CreatedAt time.Time `json:"created_at"`
}

// Client is a client as an operator sees it.
type Client struct {
	ID          uuid.UUID `json:"id"`
	Name        string    `json:"name"`
	Credentials int       `json:"credentials"` // how many of its credentials are valid
	CreatedAt   time.Time `json:"created_at"`
}

// Credential is a credential as an operator sees it, without its secret.
type Credential struct {
	ID        string     `json:"id"`
	Scopes    []string   `json:"scopes"`
	CreatedAt time.Time  `json:"created_at"`
	RevokedAt *time.Time `json:"revoked_at"` // nil: it is valid
}

const listTenants = `
SELECT t.id, t.name, (SELECT count(*) FROM clients c WHERE c.tenant_id = t.id),
    coalesce(m.state || ' ' || m.target, ''), t.created_at
FROM tenants t LEFT JOIN tenant_moves m ON m.tenant_id = t.id ORDER BY t.name`

// ListTenants returns all tenants by name.
func ListTenants(ctx context.Context, tx pgx.Tx) ([]Tenant, error) {
	rows, _ := tx.Query(ctx, listTenants)
	return collect(rows, "list tenants", func(row pgx.CollectableRow) (t Tenant, err error) {
		err = row.Scan(&t.ID, &t.Name, &t.Clients, &t.Move, &t.CreatedAt)
		t.CreatedAt = t.CreatedAt.UTC()
		return t, err
	})
}

const listClients = `
SELECT c.id, c.name,
    (SELECT count(*) FROM credentials k WHERE k.client_id = c.id AND k.revoked_at IS NULL),
    c.created_at
FROM clients c WHERE c.tenant_id = $1 ORDER BY c.name`

// ListClients returns the clients of a tenant by name.
func ListClients(ctx context.Context, tx pgx.Tx, tenantID uuid.UUID) ([]Client, error) {
	rows, _ := tx.Query(ctx, listClients, tenantID)
	return collect(rows, "list clients", func(row pgx.CollectableRow) (c Client, err error) {
		err = row.Scan(&c.ID, &c.Name, &c.Credentials, &c.CreatedAt)
		c.CreatedAt = c.CreatedAt.UTC()
		return c, err
	})
}

const listCredentials = `
SELECT id, scopes, created_at, revoked_at FROM credentials
WHERE client_id = $1 ORDER BY created_at, id`

// List returns the credentials of a client, the oldest first, revoked ones included.
func List(ctx context.Context, tx pgx.Tx, clientID uuid.UUID) ([]Credential, error) {
	rows, _ := tx.Query(ctx, listCredentials, clientID)
	scan := func(row pgx.CollectableRow) (c Credential, err error) {
		err = row.Scan(&c.ID, &c.Scopes, &c.CreatedAt, &c.RevokedAt)
		c.CreatedAt = c.CreatedAt.UTC()
		if c.RevokedAt != nil {
			*c.RevokedAt = c.RevokedAt.UTC()
		}
		return c, err
	}
	return collect(rows, "list credentials", scan)
}

// collect reads all rows into a list that is not nil, so that JSON shows []. It returns the error of
// the query, too.
func collect[T any](rows pgx.Rows, what string, read pgx.RowToFunc[T]) ([]T, error) {
	all, err := pgx.CollectRows(rows, read)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return all, nil
}
