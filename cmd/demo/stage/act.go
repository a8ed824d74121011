package stage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/oncepay/oncepay/cmd/demo/page"
)

// Act does what a button says.
func (s *Stage) Act(ctx context.Context, action string) (string, error) {
	ctx, done, err := s.begin(ctx)
	if err != nil {
		return "", err
	}
	defer done()

	switch action {
	case "pay":
		return s.pay(ctx)
	case "repeat":
		return s.repeat(ctx, 0)
	case "repeat-other-amount":
		return s.repeat(ctx, 100)
	case "hundred":
		return s.hundred(ctx)
	case "open-transaction":
		return s.openTransaction(ctx)
	case "close-transaction":
		return s.closeTransaction(ctx)
	case "lose-commit-reply":
		return s.loseCommitReply()
	}

	what, who, _ := strings.Cut(action, "/")
	for name, do := range map[string]func(context.Context, string) (string, error){
		"kill": s.kill, "freeze": s.freeze, "thaw": s.thaw,
	} {
		if what == name {
			return do(ctx, who)
		}
	}
	return "", fmt.Errorf("%w: %s", page.ErrUnknown, action)
}

// under counts the actions under way. None begins once the demo counts.
type under struct {
	mu    sync.Mutex
	ended bool
	way   sync.WaitGroup
}

var errEnding = page.Refused("the demo has begun to count: nothing can be done any more")

// begin lets an action begin, with a context that End ends as well.
func (s *Stage) begin(ctx context.Context) (_ context.Context, done func(), err error) {
	s.under.mu.Lock()
	defer s.under.mu.Unlock()
	if s.under.ended {
		return nil, nil, errEnding
	}
	s.under.way.Add(1)

	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ending, func() { cancel(errEnding) })
	return ctx, func() {
		stop()
		cancel(context.Canceled)
		s.under.way.Done()
	}, nil
}

// end lets no action begin, and waits for those under way.
func (s *Stage) endActions() {
	s.under.mu.Lock()
	s.under.ended = true
	s.under.mu.Unlock()

	s.end()
	s.under.way.Wait()
}

// refused turns an error about the state of a program into one for the visitor.
func refused(err error) error {
	var already page.Refused
	if err == nil || errors.As(err, &already) {
		return err
	}
	return page.Refused(err.Error())
}
