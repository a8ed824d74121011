package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// reserve sets the order's stock aside. Without enough of it, or canceled by now, the order ends:
// nothing has been charged.
func reserve(ctx context.Context, tx pgx.Tx, o order, key string) (move, error) {
	if o.CancelRequested {
		return move{to: Rejected, reason: "canceled"}, nil
	}

	moved, err := moveStock(ctx, tx, o, key, -o.Quantity, o.Quantity, 0)
	switch {
	case err != nil:
		return move{}, err
	case !moved:
		return move{to: Rejected, reason: "out-of-stock"}, nil
	}
	return move{to: Reserved}, nil
}

// confirm sells what was reserved: the point of no return. An order that was canceled while it was
// charged turns around here.
func confirm(ctx context.Context, tx pgx.Tx, o order, key string) (move, error) {
	if o.CancelRequested {
		return move{to: RefundDue, reason: "canceled"}, nil
	}

	moved, err := moveStock(ctx, tx, o, key, 0, -o.Quantity, o.Quantity)
	return move{to: Confirmed}, mustMove(o, moved, err)
}

// release gives the stock back.
func release(ctx context.Context, tx pgx.Tx, o order, key string) (move, error) {
	moved, err := moveStock(ctx, tx, o, key, o.Quantity, -o.Quantity, 0)
	return move{to: Released}, mustMove(o, moved, err)
}

func mustMove(o order, moved bool, err error) error {
	if err == nil && !moved {
		return fmt.Errorf("%w: less of %s is reserved than ordered", errAskOperator, o.Item)
	}
	return err
}

const updateStock = `
UPDATE stock SET available = available + $2, reserved = reserved + $3, sold = sold + $4
WHERE item = $1 AND available + $2 >= 0 AND reserved + $3 >= 0`

const insertMove = `
INSERT INTO stock_moves (key, item, available, reserved, sold) VALUES ($1, $2, $3, $4, $5)`

// moveStock moves stock under the step's key. It reports whether there was enough.
func moveStock(
	ctx context.Context, tx pgx.Tx, o order, key string, available, reserved, sold int,
) (bool, error) {
	tag, err := tx.Exec(ctx, updateStock, o.Item, available, reserved, sold)
	if err != nil {
		return false, fmt.Errorf("move stock: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return false, nil
	}

	if _, err := tx.Exec(ctx, insertMove, key, o.Item, available, reserved, sold); err != nil {
		return false, fmt.Errorf("record the move of stock: %w", err)
	}
	return true, nil
}
