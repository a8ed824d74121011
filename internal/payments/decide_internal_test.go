package payments

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

// The rules are laws over all accounts and amounts, so they are tried with many, the edges of int64
// among them. A seed that fails names itself.
func TestDecide(t *testing.T) {
	t.Parallel()
	seen := map[Code]int{}
	for seed := range uint64(20_000) {
		random := rand.New(rand.NewPCG(seed, 7))
		source, destination := randomAccount(random), randomAccount(random)
		before := []account{*source, *destination}
		c := CreatePayment{
			AmountMinor: 1 + random.Int64N(MaxAmount), Currency: pick(random, "USD", "USD", "USD", "EUR"),
			SourceAccount: source.ID, DestinationAccount: destination.ID, MayFund: random.IntN(3) > 0,
			Authorization: pick(random, 0, time.Hour),
		}
		if random.IntN(3) == 0 {
			c.AmountMinor = pick(random, 1, MaxAmount, max(1, min(MaxAmount, source.AvailableMinor())), max(1, min(MaxAmount, source.AvailableMinor()+1)))
		}
		if random.IntN(20) == 0 {
			source = nil
		}
		if random.IntN(20) == 0 {
			destination = nil
		}
		id, at := uuid.New(), time.UnixMilli(1_700_000_000_000).UTC()
		d := decide(state{payment: nil, source: source, destination: destination}, c, id, at)
		payment, entries, refusal := d.payment, d.entries, d.refusal

		for i, a := range []*account{source, destination} {
			if a != nil && *a != before[i] {
				t.Fatalf("seed %d: deciding changed an account", seed)
			}
		}
		if refusal != nil {
			seen[refusal.Code]++
			recorded := refusal.Code == InsufficientFunds
			if len(entries) != 0 || (payment != nil) != recorded || recorded && (payment.Status != Declined || payment.DeclineCode != refusal.Code) {
				t.Fatalf("seed %d: refused with %s, and yet %+v %+v", seed, refusal.Code, payment, entries)
			}
			if refusal.Code != wantRefusal(c, source, destination) {
				t.Fatalf("seed %d: refused with %s, want %q", seed, refusal.Code, wantRefusal(c, source, destination))
			}
			continue
		}
		seen[""]++
		if want := wantRefusal(c, source, destination); want != "" {
			t.Fatalf("seed %d: completed, want %s", seed, want)
		}
		if payment.DeclineCode != "" || payment.ID != id || payment.ProcessedAt != at || payment.AmountMinor != c.AmountMinor {
			t.Fatalf("seed %d: %+v", seed, payment)
		}
		if c.Authorization > 0 {
			if payment.Status != Authorized || d.held != c.AmountMinor || entries != nil || !payment.AuthorizationExpiresAt.Equal(at.Add(c.Authorization)) {
				t.Fatalf("seed %d: %+v", seed, d)
			}
			continue
		}
		if payment.Status != Completed || d.held != 0 {
			t.Fatalf("seed %d: %+v", seed, d)
		}
		if len(entries) != 2 || entries[0].AmountMinor+entries[1].AmountMinor != 0 || entries[1].AmountMinor != c.AmountMinor {
			t.Fatalf("seed %d: entries do not sum to zero: %+v", seed, entries)
		}
		for i, a := range []*account{source, destination} {
			e := entries[i]
			after := new(big.Int).Add(big.NewInt(a.BalanceMinor), big.NewInt(e.AmountMinor))
			if !after.IsInt64() || after.Int64() != e.BalanceAfterMinor {
				t.Fatalf("seed %d: %d and %d give %d", seed, a.BalanceMinor, e.AmountMinor, e.BalanceAfterMinor)
			}
			if a.Kind == Customer && e.BalanceAfterMinor < a.HeldMinor {
				t.Fatalf("seed %d: a customer is left with %d", seed, e.BalanceAfterMinor)
			}
			if e.accountID != a.ID || e.number != a.entryCount+1 || e.PaymentID != id || e.currency != "USD" && e.currency != "EUR" {
				t.Fatalf("seed %d: %+v", seed, e)
			}
		}
	}
	for _, code := range []Code{"", InsufficientFunds, UnknownAccount, CurrencyMismatch, FundingForbidden, AmountOutOfRange} {
		if seen[code] < 100 {
			t.Errorf("%q was tried only %d times", code, seen[code])
		}
	}
}

// wantRefusal tells the rules once more, in their order of precedence and with numbers that have no
// range.
func wantRefusal(c CreatePayment, source, destination *account) Code {
	if source == nil || destination == nil {
		return UnknownAccount
	}
	amount := big.NewInt(c.AmountMinor)
	available := new(big.Int).Sub(big.NewInt(source.BalanceMinor), big.NewInt(source.HeldMinor))
	left := new(big.Int).Sub(available, amount)
	grown := new(big.Int).Add(big.NewInt(destination.BalanceMinor), amount)
	held := new(big.Int).Add(big.NewInt(source.HeldMinor), amount)
	switch {
	case source.Currency != c.Currency || destination.Currency != c.Currency:
		return CurrencyMismatch
	case source.Kind == System && !c.MayFund:
		return FundingForbidden
	case source.Kind == Customer && left.Sign() < 0:
		return InsufficientFunds
	case !left.IsInt64(), c.Authorization == 0 && !grown.IsInt64(), c.Authorization > 0 && !held.IsInt64():
		return AmountOutOfRange
	}
	return ""
}

func randomAccount(random *rand.Rand) *account {
	a := &account{tenantID: uuid.UUID{1}, entryCount: random.Int64N(1000)}
	a.ID, a.Currency, a.Kind = uuid.New(), pick(random, "USD", "USD", "USD", "USD", "EUR"), pick(random, Customer, System)
	a.BalanceMinor = pick(random, 0, 1, random.Int64N(2*MaxAmount), random.Int64(), math.MaxInt64, math.MaxInt64-random.Int64N(MaxAmount))
	if a.Kind == System && random.IntN(2) == 0 {
		a.BalanceMinor = pick(random, -a.BalanceMinor, math.MinInt64, math.MinInt64+random.Int64N(MaxAmount))
	}

	// What is available is in range.
	switch {
	case a.Kind == Customer:
		a.HeldMinor = pick(random, 0, 0, a.BalanceMinor/2, a.BalanceMinor)
	case a.BalanceMinor < 0:
		a.HeldMinor = pick(random, 0, 0, a.BalanceMinor-math.MinInt64)
	default:
		a.HeldMinor = pick(random, 0, 0, math.MaxInt64-random.Int64N(MaxAmount))
	}
	return a
}

func pick[T any](random *rand.Rand, of ...T) T { return of[random.IntN(len(of))] }

func TestMissingMetadataIsEmptyObject(t *testing.T) {
	t.Parallel()
	source, destination := &account{Account: Account{ID: uuid.New(), Kind: System, Currency: "USD"}}, &account{Account: Account{ID: uuid.New(), Currency: "USD"}}
	c := CreatePayment{AmountMinor: 5, Currency: "USD", SourceAccount: source.ID, DestinationAccount: destination.ID, MayFund: true, Description: "d", ClientReference: "r"}
	payment := decide(state{payment: nil, source: source, destination: destination}, c, uuid.UUID{1}, time.UnixMilli(1).UTC()).payment
	want := &Payment{
		ID: uuid.UUID{1}, Status: Completed, AmountMinor: 5, CapturedMinor: 5, Currency: "USD", SourceAccount: source.ID, DestinationAccount: destination.ID,
		Description: "d", ClientReference: "r", Metadata: map[string]string{}, ProcessedAt: time.UnixMilli(1).UTC(), Version: 1,
	}
	if diff := cmp.Diff(want, payment); diff != "" {
		t.Error(diff)
	}
}

func TestIDsAreOrderedUUIDv7(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 7, 1, 12, 0, 0, 123_000_000, time.UTC)
	last := newID(at)
	for i := range 1000 {
		at = at.Add(time.Millisecond)
		id := newID(at)
		seconds, nanoseconds := id.Time().UnixTime()
		if id.Version() != 7 || id.Variant() != uuid.RFC4122 || !time.Unix(seconds, nanoseconds).Equal(at) {
			t.Fatalf("%s is of %s, want %s", id, time.Unix(seconds, nanoseconds).UTC(), at)
		}
		if id.String() <= last.String() {
			t.Fatalf("id %d: %s after %s", i, id, last)
		}
		last = id
	}
}
