package inbox_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/testenv"
)

// A COMMIT that waits for a standby that is away keeps its rows, and outlives the program that sent it. The next owner of
// the partition waits for it, however long that takes: it says nothing against the event.
func TestWaitForAnotherCommitIsNoFailure(t *testing.T) {
	t.Parallel()
	d := newDesk(t, testenv.Brokers(t), 1)
	id := uuid.New()
	if err := inbox.MakeDays(t.Context(), d.pool, time.Now()); err != nil {
		t.Fatal(err)
	}
	other, err := d.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := inbox.Once(t.Context(), other, "test", id, time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Exec(t.Context(), `INSERT INTO applied (event_id, key, sequence) VALUES ($1, 'a', 1)`, id); err != nil {
		t.Fatal(err)
	}

	pool := d.poolWith(t, func(c *pgx.ConnConfig) { c.RuntimeParams["statement_timeout"] = "1000" })
	c := d.consumer(t)
	c.DB, c.Tries = pool, 2
	d.start(t, c)
	d.produce(t, d.event(0, id, "a"), d.numbered(0, "a", 2))
	testenv.Eventually(t, waitLimit, func() error {
		if waits := strings.Count(d.logged(), "database away, waiting"); waits <= c.Tries {
			return fmt.Errorf("it has waited %d times, no more often than an event is tried", waits)
		}
		return nil
	})
	if err := other.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.wantApplied(t, map[string][]int64{"a": {1, 2}})
	d.letters(t, 0)
	if n := d.outcome(inbox.Failed); n != 0 {
		t.Errorf("%d failed", n)
	}
}
