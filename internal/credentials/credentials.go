// Package credentials says who calls: tenants, their clients, and the tokens with which clients prove themselves.
//
// # Promise
//
//   - A token's secret is 190 random bits. It exists in the caller's hands only: the database keeps its SHA-256, the
//     program's memory no more than that, and no log line shows it.
//   - A revoked credential is refused everywhere within 30 seconds, without any process being told.
//   - A good credential costs no round trip while it is in use: see Verifier.
//   - Invented ones cost few queries, however many they are, and hold up no credential that is in use. A good one that was not
//     seen yet waits with them, 0.2 s at most; when a thousand wait it is asked to come back (ErrBusy).
//   - A refusal does not say why, and a database that does not answer is not a refusal.
//
// # No promise
//
// It does not count guesses: guessing is hopeless against 190 bits. It keeps no record of use. Scopes are granted with the credential and never change: make a new one, move the
// client over, revoke the old one. Both work in between, and idempotency keys belong to the client, so that a repeat under
// the new credential is still a repeat.
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

// ScopeFund allows a system account as the source of a payment: to bring money into circulation.
const ScopeFund = "accounts:fund"

// ErrNotFound says that there is no such tenant, client or credential.
var ErrNotFound = errors.New("not found")

// ErrExists says that the name is taken: of a tenant anywhere, of a client within its tenant.
var ErrExists = errors.New("the name is taken")

// ErrUnknownScope says that a scope exists nowhere: most likely a typing error, which would be found much later.
var ErrUnknownScope = errors.New("unknown scope")

// CheckScopes returns ErrUnknownScope, with its name, when a scope is none of this package's.
func CheckScopes(scopes []string) error {
	for _, s := range scopes {
		if s != ScopeFund {
			return fmt.Errorf("%w %q: there is %s", ErrUnknownScope, s, ScopeFund)
		}
	}
	return nil
}

// CreateTenant makes a tenant. Its name must be new, else ErrExists, and of 1 to 100 characters.
func CreateTenant(ctx context.Context, tx pgx.Tx, name string) (uuid.UUID, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return uuid.Nil, fmt.Errorf("make tenant id: %w", err)
	}
	if _, err := tx.Exec(ctx, `INSERT INTO tenants (id, name) VALUES ($1, $2)`, id, name); err != nil {
		return uuid.Nil, fmt.Errorf("create tenant %q: %w", name, taken(err, "tenants_name_key"))
	}
	return id, nil
}

// FindTenant returns the tenant of that name, or ErrNotFound.
func FindTenant(ctx context.Context, tx pgx.Tx, name string) (uuid.UUID, error) {
	return find(ctx, tx, fmt.Sprintf("find tenant %q", name), `SELECT id FROM tenants WHERE name = $1`, name)
}

// CreateClient makes a client of a tenant. Its name must be new within the tenant, else ErrExists, and of 1 to 100
// characters.
func CreateClient(ctx context.Context, tx pgx.Tx, tenantID uuid.UUID, name string) (uuid.UUID, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return uuid.Nil, fmt.Errorf("make client id: %w", err)
	}
	if _, err := tx.Exec(ctx, `INSERT INTO clients (id, tenant_id, name) VALUES ($1, $2, $3)`, id, tenantID, name); err != nil {
		return uuid.Nil, fmt.Errorf("create client %q: %w", name, taken(err, "clients_tenant_id_name_key"))
	}
	return id, nil
}

// FindClient returns the client of that name within the tenant, or ErrNotFound.
func FindClient(ctx context.Context, tx pgx.Tx, tenantID uuid.UUID, name string) (uuid.UUID, error) {
	return find(ctx, tx, fmt.Sprintf("find client %q", name), `SELECT id FROM clients WHERE tenant_id = $1 AND name = $2`, tenantID, name)
}

// taken makes of a violation of that constraint what it means.
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

// Create makes a credential of a client. The returned token is the only copy of its secret: reveal it to its owner once tx
// has committed.
func Create(ctx context.Context, tx pgx.Tx, clientID uuid.UUID, scopes []string) (Token, error) {
	if err := CheckScopes(scopes); err != nil {
		return Token{}, fmt.Errorf("create credential: %w", err)
	}
	scopes = append([]string{}, scopes...) // none is an empty array, not NULL
	slices.Sort(scopes)
	scopes = slices.Compact(scopes)
	token := newToken()
	hash := token.hash()
	if _, err := tx.Exec(ctx, `INSERT INTO credentials (id, client_id, secret_hash, scopes) VALUES ($1, $2, $3, $4)`,
		token.id, clientID, hash[:], scopes); err != nil {
		return Token{}, fmt.Errorf("create credential: %w", err)
	}
	return token, nil
}

// Revoke ends a credential for good. Doing it again changes nothing; an id that never was is ErrNotFound.
func Revoke(ctx context.Context, tx pgx.Tx, id string) error {
	tag, err := tx.Exec(ctx, `UPDATE credentials SET revoked_at = coalesce(revoked_at, now()) WHERE id = $1`, id)
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("revoke credential: %w", err)
	}
	return nil
}
