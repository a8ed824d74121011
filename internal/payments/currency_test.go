package payments_test

import (
	"testing"

	"github.com/oncepay/oncepay/internal/payments"
)

func TestCurrenciesAreThoseOfISO4217(t *testing.T) {
	t.Parallel()
	for code, digits := range map[string]int{"USD": 2, "EUR": 2, "HUF": 2, "JPY": 0, "ISK": 0, "UGX": 0, "KWD": 3, "BHD": 3} {
		if !payments.KnownCurrency(code) || payments.Exponent(code) != digits {
			t.Errorf("%s: known %v, %d digits", code, payments.KnownCurrency(code), payments.Exponent(code))
		}
	}
	for _, code := range []string{"", "usd", "USDT", "XXX", "XAU", "DEM", " USD"} {
		if payments.KnownCurrency(code) {
			t.Errorf("%q is known", code)
		}
	}
}
