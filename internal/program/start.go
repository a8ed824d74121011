package program

import (
	"context"
	"errors"
	"sync"
	"time"
)

// startTimeout leaves room to report what is wrong within five seconds, on a busy machine too.
const startTimeout = 3 * time.Second

// StartAll runs needs concurrently, for at most 3 s, and returns the errors of all: a program that
// cannot start reports everything that is wrong at once. What breaks later is waited out.
func StartAll(ctx context.Context, needs ...func(context.Context) error) error {
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
