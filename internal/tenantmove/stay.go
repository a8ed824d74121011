package tenantmove

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	movesTo    = `SELECT target FROM tenant_moves WHERE tenant_id = $1`
	deleteMove = `DELETE FROM tenant_moves WHERE tenant_id = $1`
)

// Stay gives up a move: the tenant writes at the source again. It returns ErrRefused if the target has
// the tenant, or may have it in a moment. What the source has noted does not say so: a failover may
// have lost that it has left. A nil target is lost for good, and is not looked at.
func Stay(ctx context.Context, source, target *pgxpool.Pool, tenant uuid.UUID) error {
	unlock, err := lock(ctx, source, tenant)
	if err != nil {
		return err
	}
	defer unlock()

	var noted string
	err = source.QueryRow(ctx, movesTo, tenant).Scan(&noted)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%w: the tenant is not leaving", ErrRefused)
	}
	if err != nil {
		return fmt.Errorf("look where the tenant moves: %w", err)
	}

	stay := func() error {
		if _, err := source.Exec(ctx, deleteMove, tenant); err != nil {
			return fmt.Errorf("let the tenant stay: %w", err)
		}
		return nil
	}
	if target == nil {
		return stay()
	}
	return pgx.BeginFunc(ctx, target, func(tx pgx.Tx) error {
		if err := doesNotHave(ctx, tx, noted, tenant); err != nil {
			return err
		}
		return stay()
	})
}

// doesNotHave refuses if the target is another one than was noted, has the tenant, or is being copied
// to. A copy keeps the archive's lock until it commits, and a later one needs a new note at the source.
func doesNotHave(ctx context.Context, target pgx.Tx, noted string, tenant uuid.UUID) error {
	var is string
	if err := target.QueryRow(ctx, identity).Scan(&is); err != nil {
		return fmt.Errorf("identify target: %w", err)
	}
	if is != noted {
		return fmt.Errorf("%w: the tenant moves to %s, and this target is %s", ErrRefused, noted, is)
	}

	var locked, there bool
	if err := target.QueryRow(ctx, lockArchive).Scan(&locked); err != nil {
		return fmt.Errorf("lock the target's archive: %w", err)
	}
	if !locked {
		return fmt.Errorf("%w: a tenant is being copied to the target, or its days are being archived: "+
			"let that finish, or end it", ErrRefused)
	}

	// A statement of its own, behind the lock.
	if err := target.QueryRow(ctx, isThere, tenant).Scan(&there); err != nil {
		return fmt.Errorf("look for the tenant at the target: %w", err)
	}
	if there {
		return errThere
	}
	return nil
}
