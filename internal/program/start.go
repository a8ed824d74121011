package program

import (
	"context"
	"errors"
	"sync"
	"time"
)

// startTimeout: what is wrong at start has to be said within five seconds, on a busy machine too.
const startTimeout = 3 * time.Second

// Together tries what a program needs at its start, side by side and for at most 3 s, and returns the problems of all: a
// program that cannot work is to say why, completely, at once. What breaks later is waited out.
func Together(ctx context.Context, needs ...func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	problems := make([]error, len(needs))
	var all sync.WaitGroup
	for i, need := range needs {
		all.Go(func() { problems[i] = need(ctx) })
	}
	all.Wait()
	return errors.Join(problems...)
}
