package idempotency

import (
	"context"
	"fmt"
)

// Advanced: skip this file at a first reading. It runs only after a COMMIT whose reply was lost.

// findOutcome finds out what happened to a COMMIT by running the attempt again. mine holds the
// answers of the first attempt, and then of each later one whose COMMIT may also have taken place.
func findOutcome(
	ctx context.Context, db Beginner, attempt Attempt, mine []Answer, cause error,
) ([]Answer, error) {
	// Even if the client is gone: its disconnect must not leave the outcome open.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), outcomeTimeout)
	defer cancel()

	for n := 1; ; n++ {
		answers, unknown, err := try(ctx, ctx, db, attempt)
		if err == nil || unknown {
			pending := adopt(answers, mine)
			if err == nil && !pending {
				return answers, nil
			}
			mine = answers
		}
		if err != nil {
			cause = err
		}

		// The old transaction's backend may still be committing, or no server answers.
		if pause(ctx, n) != nil {
			return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, cause)
		}
	}
}

// adopt turns those answers into first answers that an earlier attempt of this call made itself.
// Such an answer is a Replay with our own request id of a key that was New to us. The id alone
// would not do: clients choose it. pending means that a backend of an earlier attempt still holds a
// key, whose answer stays what that attempt would make it.
func adopt(answers, mine []Answer) (pending bool) {
	for i := range answers {
		if i >= len(mine) || mine[i].State != New {
			continue
		}

		switch a := &answers[i]; {
		case a.State == InProgress:
			*a, pending = mine[i], true
		case a.State == Replay && a.RequestID == mine[i].RequestID:
			a.State = New
		}
	}
	return pending
}
