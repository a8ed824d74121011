package payments_test

import (
	"testing"

	"github.com/oncepay/oncepay/internal/payments"
)

func TestKnownCurrency(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"USD", "EUR", "HUF", "JPY", "ISK", "UGX", "KWD", "BHD"} {
		if !payments.KnownCurrency(code) {
			t.Errorf("%s is not known", code)
		}
	}
	for _, code := range []string{"", "usd", "USDT", "XXX", "XAU", "DEM", " USD"} {
		if payments.KnownCurrency(code) {
			t.Errorf("%q is known", code)
		}
	}
}
