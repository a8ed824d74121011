package payments

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/outbox"
)

// ErrDamaged means that what a payment needs was deleted. Other payments work.
var ErrDamaged = errors.New("the tables are damaged")

// OneIsToBlame reports whether a batch failed because of the data of one of its commands (class 22:
// data exception, 23: integrity constraint violation), so that the others succeed without it. Any
// other error would fail them one by one as well: a database that is away must not get a hundred
// times the load. After an unknown outcome, a command that was executed would be told that it is a
// replay.
func OneIsToBlame(err error) bool {
	var e *pgconn.PgError
	switch {
	case errors.Is(err, idempotency.ErrOutcomeUnknown):
		return false
	case errors.Is(err, ErrDamaged):
		return true
	case idempotency.MissingDay(err), outbox.MissingDay(err): // it is missing for all
		return false
	case !errors.As(err, &e) || len(e.Code) != 5:
		return false
	}
	return e.Code[:2] == "22" || e.Code[:2] == "23"
}
