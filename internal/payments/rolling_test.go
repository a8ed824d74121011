package payments_test

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/payments"
)

// The statements of the program for schema 7, which knew no holds. While programs are replaced it
// pays beside the new one, on the new schema.
const (
	lockAccountsV7 = `
SELECT a.id, a.tenant_id, a.kind, a.currency, a.balance_minor, a.entry_count
FROM unnest($1::uuid[], $2::uuid[]) t(id, tenant_id)
JOIN accounts a ON a.id = t.id AND a.tenant_id = t.tenant_id
ORDER BY a.id FOR NO KEY UPDATE OF a`

	insertPaymentsV7 = `
INSERT INTO payments (id, tenant_id, status, decline_code, version, amount_minor, currency,
    source_account, destination_account, description, metadata, client_reference, processed_at,
    client_id, idempotency_key, fingerprint, fingerprint_version, method, route, request_id)
SELECT id, tenant_id, status, decline_code, 1, amount_minor, currency,
    source_account, destination_account, description, metadata, client_reference, processed_at,
    client_id, idempotency_key, fingerprint, fingerprint_version, method, route, request_id
FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::bigint[], $6::text[],
    $7::uuid[], $8::uuid[], $9::text[], $10::jsonb[], $11::text[], $12::timestamptz[],
    $13::uuid[], $14::text[], $15::bytea[], $16::smallint[], $17::text[], $18::text[], $19::text[])
  t(id, tenant_id, status, decline_code, amount_minor, currency,
    source_account, destination_account, description, metadata, client_reference, processed_at,
    client_id, idempotency_key, fingerprint, fingerprint_version, method, route, request_id)`

	insertEntriesV7 = `
INSERT INTO ledger_entries (tenant_id, account_id, entry_no, id, payment_id, currency,
    amount_minor, balance_after_minor, created_at)
SELECT a.tenant_id, t.* FROM unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::uuid[], $5::text[],
    $6::bigint[], $7::bigint[], $8::timestamptz[]) t(account_id)
JOIN accounts a ON a.id = t.account_id`

	updateBalancesV7 = `
UPDATE accounts a SET balance_minor = t.balance_minor, entry_count = t.entry_count
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) t(id, balance_minor, entry_count)
WHERE a.id = t.id`
)

// paymentV7 is the JSON of version 7.
type paymentV7 struct {
	ID                 uuid.UUID         `json:"id"`
	Status             payments.Status   `json:"status"`
	DeclineCode        payments.Code     `json:"decline_code,omitempty"`
	AmountMinor        int64             `json:"amount_minor"`
	Currency           string            `json:"currency"`
	SourceAccount      uuid.UUID         `json:"source_account"`
	DestinationAccount uuid.UUID         `json:"destination_account"`
	Metadata           map[string]string `json:"metadata"`
	ProcessedAt        time.Time         `json:"processed_at"`
}

// processV7 answers one payment as the program of version 7 does.
func (b *bank) processV7(ctx context.Context, r payments.Request) (idempotency.Answer, error) {
	keys := []idempotency.Request{r.Request}
	answers, err := idempotency.CommitOnce(ctx, b.DB, func(ctx context.Context, tx pgx.Tx) ([]idempotency.Answer, error) {
		answers, err := idempotency.Claim(ctx, tx, keys, b.Retention)
		if err != nil || answers[0].State != idempotency.New {
			return answers, err
		}
		p, err := executeV7(ctx, tx, r, answers[0].Date.UTC().Truncate(time.Millisecond))
		if err != nil {
			return nil, err
		}

		body, _ := json.Marshal(p) // strings, numbers and times
		err = outbox.Append(ctx, tx, []outbox.Event{{
			ID: uuid.New(), AggregateType: "payments", AggregateID: p.ID.String(), AggregateVersion: 1,
			Type: "payment." + string(p.Status), Payload: body,
		}})
		if err != nil {
			return nil, err
		}
		answers[0].Response = idempotency.Response{Status: 201, ContentType: "application/json", Body: body}
		if p.Status == payments.Declined {
			answers[0].Response.Status = 402
		}
		return answers, idempotency.Store(ctx, tx, keys, answers)
	})
	if err != nil {
		return idempotency.Answer{}, err
	}
	return answers[0], nil
}

func executeV7(ctx context.Context, tx pgx.Tx, r payments.Request, at time.Time) (p paymentV7, err error) {
	type ids = []uuid.UUID
	type numbers = []int64
	c := r.Command.(payments.CreatePayment)
	var id, tenant uuid.UUID
	var kind, currency string
	var balance, count int64
	balances, counts := map[uuid.UUID]int64{}, map[uuid.UUID]int64{}
	rows, _ := tx.Query(ctx, lockAccountsV7, ids{c.SourceAccount, c.DestinationAccount}, ids{r.TenantID, r.TenantID})
	_, err = pgx.ForEachRow(rows, []any{&id, &tenant, &kind, &currency, &balance, &count}, func() error {
		balances[id], counts[id] = balance, count+1
		return nil
	})
	if err != nil {
		return p, err
	}

	p = paymentV7{ID: uuid.Must(uuid.NewV7()), Status: payments.Completed, AmountMinor: c.AmountMinor, Currency: "USD",
		SourceAccount: c.SourceAccount, DestinationAccount: c.DestinationAccount, Metadata: map[string]string{}, ProcessedAt: at}
	if balances[c.SourceAccount] < c.AmountMinor { // it knows no holds
		p.Status, p.DeclineCode = payments.Declined, payments.InsufficientFunds
	}
	var batch pgx.Batch
	batch.Queue(insertPaymentsV7, ids{p.ID}, ids{r.TenantID}, []string{string(p.Status)}, []string{string(p.DeclineCode)},
		numbers{p.AmountMinor}, []string{"USD"}, ids{p.SourceAccount}, ids{p.DestinationAccount}, []string{""}, []string{"{}"}, []string{""}, []time.Time{at},
		ids{r.ClientID}, []string{r.Key}, [][]byte{r.Fingerprint.Sum[:]}, []int16{r.Fingerprint.Version}, []string{r.Method}, []string{r.Route}, []string{r.RequestID})
	if p.Status == payments.Completed {
		both := ids{c.SourceAccount, c.DestinationAccount}
		after := numbers{balances[both[0]] - c.AmountMinor, balances[both[1]] + c.AmountMinor}
		numbered := numbers{counts[both[0]], counts[both[1]]}
		batch.Queue(insertEntriesV7, both, numbered, ids{uuid.New(), uuid.New()}, ids{p.ID, p.ID}, []string{"USD", "USD"},
			numbers{-c.AmountMinor, c.AmountMinor}, after, []time.Time{at, at})
		batch.Queue(updateBalancesV7, both, after, numbered)
	}
	return p, tx.SendBatch(ctx, &batch).Close()
}

// Both versions pay from the same accounts; the new one holds, captures, cancels and refunds, too.
func TestOldProgramPaysBesideNewOne(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	var accounts []uuid.UUID
	for range 6 {
		accounts = append(accounts, b.customer(t, 300))
	}

	var held, paid, stopped atomic.Int64
	var all sync.WaitGroup
	for n := range 8 {
		random := rand.New(rand.NewPCG(uint64(n), 3))
		all.Go(func() {
			for range 40 {
				from := random.IntN(len(accounts))
				to := (from + 1 + random.IntN(len(accounts)-1)) % len(accounts)
				r := b.pay(accounts[from], accounts[to], 1+random.Int64N(150))
				if n%2 == 0 {
					b.liveNew(t, r, random, &held)
					continue
				}
				_, err := b.processV7(soon(t), r)
				var refused *pgconn.PgError
				switch {
				case err == nil:
					paid.Add(1)
				case errors.As(err, &refused) && refused.ConstraintName == "accounts_customer_available":
					stopped.Add(1) // the schema protects what the old program does not see
				default:
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if held.Load() == 0 || paid.Load() == 0 || stopped.Load() == 0 {
		t.Errorf("%d held, %d paid by the old program, %d stopped: the test says little", held.Load(), paid.Load(), stopped.Load())
	}
	b.wantBalanced(t)
}

// liveNew pays as the new program does: at once, or by a hold that is then captured, canceled or left.
func (b *bank) liveNew(t *testing.T, r payments.Request, random *rand.Rand, held *atomic.Int64) {
	c := r.Command.(payments.CreatePayment)
	if random.IntN(4) > 0 {
		c.Authorization = time.Hour
	}
	as, err := b.Process(soon(t), []payments.Request{b.request(c)})
	if err != nil {
		t.Error(err)
		return
	}
	p := decode[payments.Payment](t, as[0])
	target := payments.Target{PaymentID: p.ID}
	var next payments.Command
	switch {
	case p.Status == payments.Completed:
		next = payments.RefundPayment{Target: target, AmountMinor: 1}
	case p.Status == payments.Authorized:
		held.Add(1)
		next = []payments.Command{payments.CancelPayment{Target: target}, payments.CapturePayment{Target: target, AmountMinor: 1}, nil}[random.IntN(3)]
	}
	if next == nil {
		return
	}
	if _, err := b.Process(soon(t), []payments.Request{b.request(next)}); err != nil {
		t.Error(err)
	}
}

func TestOldPaymentIsRefundedByNewProgram(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	from, to := b.customer(t, 100), b.customer(t, 0)
	old, err := b.processV7(t.Context(), b.pay(from, to, 70))
	if err != nil {
		t.Fatal(err)
	}
	before := decode[paymentV7](t, old)

	tx, err := b.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	p, err := payments.FindPayment(t.Context(), tx, b.tenant, before.ID)
	if err != nil || p.Status != payments.Completed || p.CapturedMinor != 70 || p.RefundedMinor != 0 || p.Version != 1 ||
		p.AuthorizationExpiresAt != nil || !p.ProcessedAt.Equal(before.ProcessedAt) {
		t.Errorf("%+v, %v", p, err)
	}

	refund := payments.RefundPayment{Target: payments.Target{PaymentID: before.ID, IfVersion: 1}}
	r := decode[payments.Refund](t, b.process(t, b.request(refund))[0])
	if r.AmountMinor != 70 || r.PaymentVersion != 2 || b.balance(t, from) != 100 {
		t.Errorf("%+v", r)
	}
	b.wantBalanced(t)
}
