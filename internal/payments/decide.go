package payments

import (
	"crypto/rand"
	"encoding/binary"
	"time"

	"github.com/google/uuid"
)

// account is an Account with what only the ledger needs.
type account struct {
	Account
	tenantID   uuid.UUID
	entryCount int64
}

// entry is an Entry with its place in the ledger.
type entry struct {
	Entry
	accountID uuid.UUID
	number    int64 // 1, 2, 3 … within the account
	currency  string
}

// decidePayment holds the business rules. Given the two accounts (nil if the tenant has no such
// account) it decides a payment, without side effects. It returns one of
//
//   - a completed payment and its two entries, which sum to zero,
//   - a declined payment and the refusal, no entries: the attempt itself is on record,
//   - a refusal alone: there is nothing to record.
func decidePayment(
	id uuid.UUID, at time.Time, c CreatePayment, source, destination *account,
) (*Payment, []entry, *Refusal) {
	if source == nil {
		return nil, nil, &Refusal{Code: UnknownAccount, Account: c.SourceAccount}
	}
	if destination == nil {
		return nil, nil, &Refusal{Code: UnknownAccount, Account: c.DestinationAccount}
	}

	for _, a := range []*account{source, destination} {
		if a.Currency != c.Currency {
			return nil, nil, &Refusal{Code: CurrencyMismatch, Account: a.ID}
		}
	}
	if source.Kind == System && !c.MayFund {
		return nil, nil, &Refusal{Code: FundingForbidden, Account: source.ID}
	}

	payment := &Payment{
		ID: id, Status: Completed, AmountMinor: c.AmountMinor, Currency: c.Currency,
		SourceAccount: c.SourceAccount, DestinationAccount: c.DestinationAccount,
		Description: c.Description, Metadata: c.Metadata, ClientReference: c.ClientReference,
		ProcessedAt: at,
	}
	if payment.Metadata == nil {
		payment.Metadata = map[string]string{}
	}

	if source.Kind == Customer && source.BalanceMinor < c.AmountMinor {
		payment.Status, payment.DeclineCode = Declined, InsufficientFunds
		return payment, nil, &Refusal{Code: InsufficientFunds, Account: source.ID}
	}

	debited, ok := add(source.BalanceMinor, -c.AmountMinor)
	if !ok {
		return nil, nil, &Refusal{Code: AmountOutOfRange, Account: source.ID}
	}
	credited, ok := add(destination.BalanceMinor, c.AmountMinor)
	if !ok {
		return nil, nil, &Refusal{Code: AmountOutOfRange, Account: destination.ID}
	}

	return payment, []entry{
		newEntry(payment, source, -c.AmountMinor, debited),
		newEntry(payment, destination, c.AmountMinor, credited),
	}, nil
}

func newEntry(p *Payment, a *account, amount, balance int64) entry {
	return entry{
		Entry: Entry{
			ID: newID(p.ProcessedAt), PaymentID: p.ID, CreatedAt: p.ProcessedAt,
			AmountMinor: amount, BalanceAfterMinor: balance,
		},
		accountID: a.ID, number: a.entryCount + 1, currency: p.Currency,
	}
}

// add returns a + b, and false if that overflows.
func add(a, b int64) (int64, bool) {
	sum := a + b
	return sum, (sum > a) == (b > 0)
}

// newID returns a UUIDv7 (RFC 9562 section 5.7) of the time at, to the millisecond; the rest is
// random. Ids sort by time, so a list by id needs no further index, and times translate to bounds
// of ids.
func newID(at time.Time) uuid.UUID {
	var id uuid.UUID
	_, _ = rand.Read(id[6:]) // never fails: the program would have crashed

	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(at.UnixMilli())) // the database clock is past 1970
	copy(id[:6], ms[2:])

	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return id
}
