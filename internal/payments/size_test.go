package payments_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/testenv"
)

// What a payment costs on disk, table by table with its indexes, and in the write-ahead log;
// docs/sizes.md has the figures.
//
//	go test -run '^$' -bench BytesOnDisk -benchtime 200000x ./internal/payments
//
// The number of payments is the benchtime; below some ten thousand it is the pages that are only
// begun that are measured. Every request is a batch of one, under a random UUID, as most clients
// choose their keys. The log is the whole server's: let nothing else run on it.
func BenchmarkBytesOnDiskPerPayment(b *testing.B) {
	bank, accounts := newFundedBank(b, 1000)
	before := measureSizes(b, bank.owner)
	var bodies atomic.Int64
	b.ResetTimer()
	b.SetParallelism(4)
	b.RunParallel(func(loop *testing.PB) {
		for loop.Next() {
			as, err := bank.Process(b.Context(), []payments.Request{bank.usualPayment(accounts)})
			if err != nil || as[0].Response.Status != 201 {
				b.Errorf("%+v %v", as, err)
				return
			}
			bodies.Add(int64(len(as[0].Response.Body)))
		}
	})
	b.StopTimer()
	after := measureSizes(b, bank.owner)
	for unit, size := range after {
		b.ReportMetric(float64(size-before[unit])/float64(b.N), unit)
	}
	b.ReportMetric(float64(bodies.Load())/float64(b.N), "answer-B/op")
}

// newFundedBank has a number of accounts with more money than the benchmark moves. It answers what
// the API answers.
func newFundedBank(b *testing.B, customers int) (*bank, []uuid.UUID) {
	b.Helper()
	db := testenv.Database(b)
	processor := &payments.Processor{DB: db.Pool(b, "api_write"), Retention: idempotency.DefaultRetention, Render: httpapi.Render}
	bank := &bank{Processor: processor, owner: db.Pool(b, ""), tenant: uuid.New(), client: uuid.New()}
	bank.system = bank.open(b, payments.System, "USD")
	accounts := make([]uuid.UUID, customers)
	for i := range accounts {
		accounts[i] = bank.customer(b, 1_000_000_000_000)
	}
	return bank, accounts
}

// usualPayment fills the fields that clients usually fill, from one account to another that are
// chosen by chance.
func (b *bank) usualPayment(accounts []uuid.UUID) payments.Request {
	chance := uuid.New()
	from := (int(chance[0])<<8 | int(chance[1])) % len(accounts)
	to := (from + 1 + int(chance[2])) % len(accounts)
	r := b.pay(accounts[from], accounts[to], 100+int64(chance[3]))
	c := r.Command.(payments.CreatePayment)
	c.Description = "Invoice 2026-001742, October"
	c.ClientReference = fmt.Sprintf("order-%x", chance[8:12])
	c.Metadata = map[string]string{"customer": fmt.Sprintf("c-%x", chance[12:])}
	r.Command = c
	r.Route = "/api/v1/payments"
	r.Headers = map[string]string{"traceparent": fmt.Sprintf("00-%x-%x-01", chance, randomBytes(8))}
	return r
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

// The partitions of each table with their indexes and TOAST, after a VACUUM, and where the log
// ends.
func measureSizes(b *testing.B, owner *pgxpool.Pool) map[string]int64 {
	b.Helper()
	sizes := map[string]int64{"WAL-B/op": count(b, owner, `SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint`)}
	for _, table := range []string{"idempotency_keys", "outbox_events", "payments", "ledger_entries"} {
		if _, err := owner.Exec(context.Background(), `VACUUM `+table); err != nil {
			b.Fatal(err)
		}
		for unit, function := range map[string]string{table + "-B/op": "pg_total_relation_size", table + "-index-B/op": "pg_indexes_size"} {
			sizes[unit] = count(b, owner, `SELECT sum(`+function+`(oid)) FROM (SELECT relid FROM pg_partition_tree($1::text::regclass) UNION SELECT $1::text::regclass) t(oid)`, table)
		}
	}
	return sizes
}
