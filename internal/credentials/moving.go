package credentials

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// ErrMoving is returned for a change to a tenant that moves to another cluster, or has moved. Its
// credentials are copied: a change here that came after the copy would be lost there.
var ErrMoving = errors.New("the tenant is moving, or has moved, to another cluster: " +
	"do it at the target, or run `oncepay tenants stay`")

// Read by the transaction that changes something. The move waits for those that were open when it
// noted the tenant, so one that does not see the note ends before the copy begins.
const (
	tenantMoves = `
SELECT EXISTS (SELECT FROM tenant_moves WHERE tenant_id = $1)`

	clientMoves = `
SELECT EXISTS (SELECT FROM clients c JOIN tenant_moves m USING (tenant_id) WHERE c.id = $1)`

	credentialMoves = `
SELECT EXISTS (SELECT FROM credentials k JOIN clients c ON c.id = k.client_id JOIN tenant_moves m USING (tenant_id)
               WHERE k.id = $1)`
)

// stays returns ErrMoving if the tenant that query finds by id moves.
func stays[ID uuid.UUID | string](ctx context.Context, tx pgx.Tx, query string, id ID) error {
	var moves bool
	if err := tx.QueryRow(ctx, query, id).Scan(&moves); err != nil {
		return fmt.Errorf("look whether the tenant moves: %w", err)
	}
	if moves {
		return ErrMoving
	}
	return nil
}
