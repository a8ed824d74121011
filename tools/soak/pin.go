package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/tools/rig"
)

// pin holds a snapshot, as pg_dump or a forgotten transaction does: no row version that it might
// see can be removed.
type pin struct {
	conn *pgx.Conn
	seen int64
}

const pinned = `SELECT count(*) FROM outbox_events`

func holdSnapshot(ctx context.Context, url string) (*pin, error) {
	conn, err := rig.Connect(ctx, url)
	if err != nil {
		return nil, err
	}

	p := &pin{conn: conn}
	if _, err := conn.Exec(ctx, `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`); err != nil {
		return nil, fmt.Errorf("pin a snapshot: %w", err)
	}
	if err := conn.QueryRow(ctx, pinned).Scan(&p.seen); err != nil {
		return nil, fmt.Errorf("pin a snapshot: %w", err)
	}
	return p, nil
}

// held returns an error unless the snapshot is still the one first taken.
func (p *pin) held(ctx context.Context) error {
	var now int64
	if err := p.conn.QueryRow(ctx, pinned).Scan(&now); err != nil {
		return fmt.Errorf("void: the snapshot was not held: %w", err)
	}

	if now != p.seen {
		return errors.New("void: the snapshot was not held")
	}
	return nil
}
