// Package credentials identifies callers: tenants, their clients, and the tokens by which clients
// authenticate.
//
// # Promise
//
//   - A token's secret is 190 random bits. Only its owner has it: the database and the process's
//     memory hold its SHA-256, and no log line shows it.
//   - A revoked credential is refused everywhere within 30 seconds, without notifying any process.
//   - A valid credential in use costs no round trip: see Verifier.
//   - Invented tokens cost few queries, however many there are, and delay no credential in use. A
//     valid one seen for the first time waits with them, 0.2 s at most; with a thousand waiting
//     it is asked to come back (ErrBusy).
//   - A refusal does not say why, and a database that does not answer is not a refusal.
//
// # No promise
//
// It does not count guesses, which are hopeless against 190 bits, and keeps no record of use. The
// scopes of a credential never change: create a new one, move the client over, revoke the old one.
// Both work in between. Idempotency keys belong to the client, so a repeat under the new credential
// is still a repeat.
package credentials

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ScopeFund allows payments from a system account, which bring money into circulation.
const ScopeFund = "accounts:fund"

// ErrNotFound is returned when there is no such tenant, client or credential.
var ErrNotFound = errors.New("not found")

// ErrExists is returned when a name is taken: a tenant's anywhere, a client's within its tenant.
var ErrExists = errors.New("the name is taken")

// ErrUnknownScope is returned for a scope that does not exist, most likely a typing error.
var ErrUnknownScope = errors.New("unknown scope")

// CheckScopes returns ErrUnknownScope, with the name, if a scope does not exist.
func CheckScopes(scopes []string) error {
	for _, s := range scopes {
		if s != ScopeFund {
			return fmt.Errorf("%w %q: there is %s", ErrUnknownScope, s, ScopeFund)
		}
	}
	return nil
}

const insertTenant = `INSERT INTO tenants (id, name) VALUES ($1, $2)`

// CreateTenant creates a tenant. Its name has 1 to 100 characters; ErrExists if it is taken.
func CreateTenant(ctx context.Context, tx pgx.Tx, name string) (uuid.UUID, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return uuid.Nil, fmt.Errorf("make tenant id: %w", err)
	}

	if _, err := tx.Exec(ctx, insertTenant, id, name); err != nil {
		return uuid.Nil, fmt.Errorf("create tenant %q: %w", name, taken(err, "tenants_name_key"))
	}
	return id, nil
}

const findTenant = `SELECT id FROM tenants WHERE name = $1`

// FindTenant returns the tenant of that name, or ErrNotFound.
func FindTenant(ctx context.Context, tx pgx.Tx, name string) (uuid.UUID, error) {
	return find(ctx, tx, fmt.Sprintf("find tenant %q", name), findTenant, name)
}

const insertClient = `INSERT INTO clients (id, tenant_id, name) VALUES ($1, $2, $3)`

// CreateClient creates a client of a tenant. Its name has 1 to 100 characters; ErrExists if the
// tenant has a client of that name, ErrMoving if it moves.
func CreateClient(
	ctx context.Context, tx pgx.Tx, tenantID uuid.UUID, name string,
) (uuid.UUID, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return uuid.Nil, fmt.Errorf("make client id: %w", err)
	}

	if err := stays(ctx, tx, tenantMoves, tenantID); err != nil {
		return uuid.Nil, fmt.Errorf("create client %q: %w", name, err)
	}
	if _, err := tx.Exec(ctx, insertClient, id, tenantID, name); err != nil {
		err = taken(err, "clients_tenant_id_name_key")
		return uuid.Nil, fmt.Errorf("create client %q: %w", name, err)
	}
	return id, nil
}

const findClient = `SELECT id FROM clients WHERE tenant_id = $1 AND name = $2`

// FindClient returns the client of that name within the tenant, or ErrNotFound.
func FindClient(
	ctx context.Context, tx pgx.Tx, tenantID uuid.UUID, name string,
) (uuid.UUID, error) {
	return find(ctx, tx, fmt.Sprintf("find client %q", name), findClient, tenantID, name)
}

// taken turns a violation of the constraint into ErrExists.
func taken(err error, constraint string) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "23505" && pg.ConstraintName == constraint {
		return ErrExists
	}
	return err
}

func find(ctx context.Context, tx pgx.Tx, what, query string, args ...any) (uuid.UUID, error) {
	var id uuid.UUID

	err := tx.QueryRow(ctx, query, args...).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNotFound
	}
	if err != nil {
		return uuid.Nil, fmt.Errorf("%s: %w", what, err)
	}
	return id, nil
}

const insertCredential = `
INSERT INTO credentials (id, client_id, secret_hash, scopes) VALUES ($1, $2, $3, $4)`

// Create creates a credential of a client. The returned token is the only copy of its secret:
// reveal it to its owner once tx has committed. ErrMoving if the tenant moves.
func Create(ctx context.Context, tx pgx.Tx, clientID uuid.UUID, scopes []string) (Token, error) {
	if err := CheckScopes(scopes); err != nil {
		return Token{}, fmt.Errorf("create credential: %w", err)
	}
	scopes = append([]string{}, scopes...) // an empty array, not NULL
	slices.Sort(scopes)
	scopes = slices.Compact(scopes)

	if err := stays(ctx, tx, clientMoves, clientID); err != nil {
		return Token{}, fmt.Errorf("create credential: %w", err)
	}

	// The secret itself stays here.
	token := newToken()
	hash := token.hash()
	if _, err := tx.Exec(ctx, insertCredential, token.id, clientID, hash[:], scopes); err != nil {
		return Token{}, fmt.Errorf("create credential: %w", err)
	}
	return token, nil
}

const revoke = `UPDATE credentials SET revoked_at = coalesce(revoked_at, now()) WHERE id = $1`

// Revoke ends a credential for good. Revoking it again changes nothing; ErrNotFound if it never
// existed, ErrMoving if its tenant moves: it would stay valid in the other cluster.
func Revoke(ctx context.Context, tx pgx.Tx, id string) error {
	if err := stays(ctx, tx, credentialMoves, id); err != nil {
		return fmt.Errorf("revoke credential: %w", err)
	}

	tag, err := tx.Exec(ctx, revoke, id)
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("revoke credential: %w", err)
	}
	return nil
}
