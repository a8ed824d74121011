package payments

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// ErrMoving means that the tenant leaves for another cluster, or has left: nothing was done here.
var ErrMoving = errors.New("the tenant is moving to another cluster")

// hasNotLeft is for what calls the PSP and records what it says. A tenant that leaves still needs both
// here. One that has left has nothing open, unless this database was restored to an earlier moment:
// then its operations have gone on in its next cluster, and a call from here could charge twice.
const hasNotLeft = `tenant_id <> ALL(ARRAY(SELECT m.tenant_id FROM tenant_moves m WHERE m.state = 'left'))`

// A row or none. Every transaction that writes for clients reads it before it decides. So once the
// transactions that were open when a row was committed have ended, nothing is written for its tenant,
// and no payment pays for a lock.
const (
	selectMoves = `
SELECT ARRAY(SELECT tenant_id FROM tenant_moves)`

	// With what lockPatience does, so that it costs no statement.
	selectMovesWithPatience = selectMoves + `
FROM set_config('lock_timeout', '200ms', true)`
)

func (b *books) addMoves(row pgx.Row) error {
	var leaving []uuid.UUID
	err := row.Scan(&leaving)
	for _, tenant := range leaving {
		b.leaving[tenant] = true
	}
	return err
}

// leaves reports whether r must not be executed, because its tenant leaves. What the PSP has done is
// recorded nevertheless: the tenant leaves when nothing of its is with the PSP. Of one that has left
// there is no open operation, see hasNotLeft.
func (b *books) leaves(r *Request) bool {
	_, settles := r.Command.(settlePayment)
	return b.leaving[r.TenantID] && !settles
}

const isLeaving = `
SELECT EXISTS (SELECT FROM tenant_moves WHERE tenant_id = $1)`

// Stays returns ErrMoving if the tenant leaves. Call it in each transaction that writes for a client
// beside Process.
func Stays(ctx context.Context, tx pgx.Tx, tenant uuid.UUID) error {
	var leaves bool
	if err := tx.QueryRow(ctx, isLeaving, tenant).Scan(&leaves); err != nil {
		return fmt.Errorf("look whether the tenant moves: %w", err)
	}
	if leaves {
		return ErrMoving
	}
	return nil
}
