package payments

import "strings"

// The currencies of ISO 4217 that people pay with, by their number of decimal digits, which is for
// readers only: all arithmetic is in minor units. Funds, metals and test codes (CHE, XAU, XXX …)
// are left out.
const (
	noDigits    = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX VND VUV XAF XOF XPF"
	threeDigits = "BHD IQD JOD KWD LYD OMR TND"
	twoDigits   = "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BRL BSD BTN BWP " +
		"BYN BZD CAD CDF CHF CNY COP CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD " +
		"FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD KES KGS " +
		"KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR " +
		"MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD " +
		"RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT " +
		"TOP TRY TTD TWD TZS UAH USD UYU UZS VES WST XCD XCG YER ZAR ZMW ZWG"
)

var currencies = func() map[string]bool {
	known := map[string]bool{}
	for code := range strings.FieldsSeq(noDigits + " " + twoDigits + " " + threeDigits) {
		known[code] = true
	}
	return known
}()

// KnownCurrency reports whether accounts can be kept in the ISO 4217 currency code, in capitals.
func KnownCurrency(code string) bool { return currencies[code] }
