package payments_test

import (
	"errors"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/testenv"
)

// TestHoldsOfALockedAccountAreTriedAgain: in every sweep something else expires, so none is empty.
func TestHoldsOfALockedAccountAreTriedAgain(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	stuck, one, other := b.customer(t, 100), b.customer(t, 100), b.customer(t, 100)
	sweep := func(want int) {
		t.Helper()
		b.authorized(t, 1, one, other, time.Millisecond)
		testenv.Eventually(t, 30*time.Second, func() error {
			if count(t, b.owner, `SELECT count(*) FROM payments WHERE authorization_expires_at > now()`) > 0 {
				return errors.New("one is not over yet")
			}
			return nil
		})
		if n, err := b.ExpireBatch(soon(t), 100); err != nil || n != want {
			t.Errorf("released %d, want %d: %v", n, want, err)
		}
	}
	b.authorized(t, 3, stuck, one, time.Millisecond)
	release := b.lock(t, stuck)
	sweep(1)
	release()
	sweep(4)
}
