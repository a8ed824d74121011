package idempotency

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Run does one request under its key. If the key is new, Run calls do in the transaction that holds
// the claim, stores its response, and commits it together with what do wrote. What Run returned
// without an error may be sent. When do returns an error everything is rolled back, nothing is
// stored and the key stays free.
//
// do may be called more than once (see CommitOnce): it must do nothing outside the transaction.
func Run(
	ctx context.Context, db Beginner, r Request, retention time.Duration,
	do func(context.Context, pgx.Tx) (Response, error),
) (Answer, error) {
	rs := []Request{r}
	attempt := func(ctx context.Context, tx pgx.Tx) ([]Answer, error) {
		as, err := Claim(ctx, tx, rs, retention)
		if err != nil || as[0].State != New {
			return as, err
		}

		if as[0].Response, err = do(ctx, tx); err != nil {
			return nil, err
		}
		return as, Store(ctx, tx, rs, as)
	}

	as, err := CommitOnce(ctx, db, attempt)
	if MissingDay(err) {
		// In a transaction of its own: the one that failed is rolled back and holds no lock.
		if _, err := MakePartitions(ctx, db); err != nil {
			return Answer{}, err
		}
		as, err = CommitOnce(ctx, db, attempt)
	}
	if err != nil {
		return Answer{}, err
	}
	return as[0], nil
}
