package payments

import (
	"crypto/sha256"
	"encoding/base32"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Operation is what the PSP is asked to do. Its row was committed by the transaction that decided it,
// before anybody could call.
type Operation struct {
	ID          uuid.UUID
	TenantID    uuid.UUID
	PaymentID   uuid.UUID
	RefundID    *uuid.UUID // of kind RefundCharge
	Kind        OperationKind
	AmountMinor int64
	Currency    string
	CardToken   string // of kind Charge
	Traceparent string // of the request that led to it; empty: it was not traced

	// As it was claimed.
	State           OperationState // before the claim: Pending if it was never sent
	Tries           int            // this one included
	Token           int64          // fencing token: Record takes what is not Succeeded under the last one only
	Age             time.Duration  // since it was decided: its key is no older
	CreatedAt       time.Time
	ChargeReference string // the PSP's id of the charge that a refund is about

	// As it ended.
	Reference string // the PSP's id
}

// OperationKind is what the PSP does.
type OperationKind string

// The kinds of operations.
const (
	Charge       OperationKind = "charge"
	RefundCharge OperationKind = "refund"
)

// OperationState is what is known about an operation.
type OperationState string

// The states of an operation. The last three are the PSP's result and do not change any more.
const (
	Pending           OperationState = "pending" // never sent
	Unknown           OperationState = "unknown" // perhaps sent, perhaps executed
	Succeeded         OperationState = "succeeded"
	OperationDeclined OperationState = "declined"
	OperationFailed   OperationState = "failed" // definitely not executed
)

// Ended reports whether s is a result.
func (s OperationState) Ended() bool {
	return s == Succeeded || s == OperationDeclined || s == OperationFailed
}

// Key is the Idempotency-Key of all tries of the operation. It is not the client's: one key of a
// client may lead to several operations, and the PSP must not meet the keys of two tenants that are
// the same. The client's is found through the payment's row.
func (o Operation) Key() string {
	sum := sha256.Sum256(append([]byte("oncepay/v1"), o.ID[:]...))
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:])
}

const insertOperations = `
INSERT INTO psp_operations (id, tenant_id, payment_id, refund_id, kind, amount_minor, currency,
    card_token, created_at, traceparent)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::bigint[],
    $7::text[], $8::text[], $9::timestamptz[], $10::text[])`

func (b *books) queueOperations(batch *pgx.Batch) {
	n := len(b.asked)
	ids, tenants, payments := make([][16]byte, n), make([][16]byte, n), make([][16]byte, n)
	refunds, kinds := make([]*[16]byte, n), make([]string, n)
	amounts, currencies := make([]int64, n), make([]string, n)
	cards, createdAt, traces := make([]string, n), make([]time.Time, n), make([]*string, n)

	for i, a := range b.asked {
		ids[i], tenants[i], payments[i] = a.Operation.ID, a.Request.TenantID, a.PaymentID
		refunds[i], kinds[i] = (*[16]byte)(a.RefundID), string(a.Kind)
		amounts[i], currencies[i] = a.AmountMinor, a.Currency
		cards[i], createdAt[i] = a.CardToken, a.At
		if parent, traced := a.Request.Headers["traceparent"]; traced {
			traces[i] = &parent
		}
	}

	batch.Queue(insertOperations, ids, tenants, payments, refunds, kinds, amounts, currencies,
		cards, createdAt, traces)
}
