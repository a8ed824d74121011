package payments_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/payments"
)

// Somebody changed accounts by hand, so some holds cannot be released. All others are.
func TestBrokenHoldKeepsNoOtherFromRelease(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]string{
		"held too little": `UPDATE accounts SET held_minor = 0 WHERE id = $1`,
		"no account":      `DELETE FROM accounts WHERE id = $1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBank(t, nil)
			broken, from, to := b.customer(t, 10), b.customer(t, 100), b.customer(t, 0)
			bad := b.authorized(t, 2, broken, to, time.Millisecond)
			b.authorized(t, 7, from, to, time.Millisecond)
			if _, err := b.owner.Exec(t.Context(), damage, broken); err != nil {
				t.Fatal(err)
			}

			var last error
			released := 0
			for range 4 {
				n, err := b.ExpireBatch(soon(t), 5)
				released += n
				if err != nil {
					last = err
				}
			}
			if released != 7 || last == nil || !namesOneOf(last, bad) {
				t.Errorf("released %d of 7: %v", released, last)
			}
			if n := count(t, b.owner, `SELECT count(*) FROM payments WHERE status = $1`, payments.Authorized); n != 2 {
				t.Errorf("%d are authorized, want the 2 broken ones", n)
			}
		})
	}
}

func namesOneOf(err error, ids []uuid.UUID) bool {
	for _, id := range ids {
		if strings.Contains(err.Error(), id.String()) {
			return true
		}
	}
	return false
}
