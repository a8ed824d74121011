package tenantmove

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Stay gives up a move: the tenant writes at the source again. It returns ErrRefused if the target has
// the tenant, or may have it in a moment. What the source has noted does not say so: a failover may
// have lost that it has left.
func Stay(ctx context.Context, source, target *pgxpool.Pool, tenant uuid.UUID) error {
	return withNote(ctx, source, tenant, func(n note) error {
		tx, err := target.BeginTx(ctx, readCommitted)
		if err != nil {
			return fmt.Errorf("connect to target: %w", err)
		}
		defer func() { // it only looks, and keeps a lock
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			_ = tx.Rollback(ctx)
		}()

		if err := doesNotHave(ctx, tx, n.target, tenant); err != nil {
			return err
		}
		return n.remove(ctx, source, tenant)
	})
}

// StayWithoutTarget does not look at the target: it is lost for good, and nobody will start it again.
// lost must be the one that was noted.
func StayWithoutTarget(ctx context.Context, source *pgxpool.Pool, lost string, tenant uuid.UUID) error {
	return withNote(ctx, source, tenant, func(n note) error {
		if n.target != lost {
			return fmt.Errorf("%w: the tenant moves to %s, or has moved there", ErrRefused, n.target)
		}
		return n.remove(ctx, source, tenant)
	})
}

// note is what the source says of a move.
type note struct {
	target  string
	attempt uuid.UUID
}

const (
	findNote = `SELECT target, attempt FROM tenant_moves WHERE tenant_id = $1`

	// The one that was found: a command that was frozen meanwhile must not remove another's.
	removeNote = `DELETE FROM tenant_moves WHERE tenant_id = $1 AND attempt = $2`
)

func withNote(
	ctx context.Context, source *pgxpool.Pool, tenant uuid.UUID, then func(note) error,
) error {
	unlock, err := lock(ctx, source, tenant)
	if err != nil {
		return err
	}
	defer unlock()

	var n note
	err = source.QueryRow(ctx, findNote, tenant).Scan(&n.target, &n.attempt)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%w: the tenant is not leaving", ErrRefused)
	}
	if err != nil {
		return fmt.Errorf("look where the tenant moves: %w", err)
	}
	return then(n)
}

func (n note) remove(ctx context.Context, source *pgxpool.Pool, tenant uuid.UUID) error {
	tag, err := source.Exec(ctx, removeNote, tenant, n.attempt)
	if err != nil {
		return fmt.Errorf("let the tenant stay: %w", err)
	}
	if tag.RowsAffected() != 1 {
		return fmt.Errorf("%w: another command has taken over", ErrRefused)
	}
	return nil
}

// doesNotHave refuses if the target is another one than was noted, has the tenant, or is being copied
// to. A copy keeps the archive's lock until it commits, and a later one needs a new note at the source.
func doesNotHave(ctx context.Context, target pgx.Tx, noted string, tenant uuid.UUID) error {
	is, err := identify(ctx, target, "target")
	if err != nil {
		return err
	}
	if is != noted {
		return fmt.Errorf("%w: the tenant moves to %s, or has moved there, and this target is %s: name that one; "+
			"if it was upgraded, made anew or lost: \"Move a tenant\" in docs/scaling.md", ErrRefused, noted, is)
	}

	var locked, there bool
	if err := target.QueryRow(ctx, lockArchive).Scan(&locked); err != nil {
		return fmt.Errorf("lock the target's archive: %w", err)
	}
	if !locked {
		return fmt.Errorf("%w: a tenant is being copied to or from the target, or oncepay archive runs there: "+
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
