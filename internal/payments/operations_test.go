package payments_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/payments"
)

// The PSP knows operations by these keys: a program that derived others would charge a second time.
func TestKeyOfOperationNeverChanges(t *testing.T) {
	t.Parallel()
	o := payments.Operation{ID: uuid.MustParse("01890a5d-ac96-774b-bcce-b302099a8057"), PaymentID: uuid.New(), Tries: 1, Token: 1}
	const want = "N4VPBV2KQEHNUQT5DCGVIS3WLIBRHPIWP37TPAA5IRU7NJZFLQ2Q"
	if got := o.Key(); got != want {
		t.Errorf("the key is %s, want %s", got, want)
	}
	again, other := o, o
	again.Tries, again.Token, again.State, again.AmountMinor = 7, 8, payments.Unknown, 9
	other.ID = uuid.New()
	if again.Key() != o.Key() || other.Key() == o.Key() {
		t.Error("the key depends on the try, or not on the operation")
	}
}

// A restored database has forgotten the first call. The PSP may have forgotten its key.
func TestOperationAgesFromItsDecision(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	b.open(t, payments.Clearing, "USD")
	b.process(t, b.byCard(b.customer(t, 0), 100))
	if _, err := b.owner.Exec(t.Context(), `UPDATE psp_operations SET created_at = created_at - interval '2 days'`); err != nil {
		t.Fatal(err)
	}
	if age := b.claimed(t, 1)[0].Age; age < 48*time.Hour {
		t.Errorf("it is %s old", age)
	}
}
