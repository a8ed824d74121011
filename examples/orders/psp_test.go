package main

import (
	"log/slog"
	"net/http/httptest"
	"testing"

	"github.com/oncepay/oncepay/internal/fakepsp"
)

// takeCards lets the bank charge cards at a PSP that fails every seventh call: it loses replies, and
// answers 500 before and after it has charged.
func (b *bank) takeCards() *fakepsp.PSP {
	b.t.Helper()
	const key = "psp_secret"
	psp, err := fakepsp.Open(b.t.TempDir(), fakepsp.Options{
		APIKey: key, Log: slog.New(slog.DiscardHandler),
		Faults: fakepsp.Faults{LoseReply: 0.05, ErrorBefore: 0.05, ErrorAfter: 0.05},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	server := httptest.NewServer(psp)
	b.t.Cleanup(func() {
		server.Close()
		if err := psp.Close(); err != nil {
			b.t.Error(err)
		}
	})

	b.workerEnv = []string{
		"DATABASE_URL=" + b.db.URLAs("worker"), "WORKER_PARTS=psp", "PSP_URL=" + server.URL, "PSP_API_KEY=" + key,
	}
	b.startWorker()
	return psp
}

func (b *bank) startWorker() {
	b.t.Helper()
	b.worker = start(b.t, b.dir, "worker", b.workerEnv...)
}

// comparePSP looks at the PSP's books: no operation twice, and what was charged and not refunded is
// what the payments by card say.
func (b *bank) comparePSP(t *testing.T, psp *fakepsp.PSP) {
	t.Helper()
	totals := psp.Totals()
	var ours int64
	if err := b.owner.QueryRow(t.Context(), `SELECT coalesce(sum(amount_minor - refunded_minor), 0)
		FROM payments WHERE status = 'completed' AND payment_method = 'card'`).Scan(&ours); err != nil {
		t.Fatal(err)
	}
	theirs := totals.Charged["usd"] - totals.Refunded["usd"]
	if totals.OperationsTwice != 0 || totals.ChargesSucceeded == 0 || ours != theirs {
		t.Errorf("the PSP has %d in its books, our payments %d; %+v", theirs, ours, totals)
	}
	t.Logf("%+v", totals)
}
