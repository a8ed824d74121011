package fakepsp

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
)

// Totals sums up the books.
type Totals struct {
	ChargesSucceeded int              `json:"charges_succeeded"`
	ChargesDeclined  int              `json:"charges_declined"`
	RefundsSucceeded int              `json:"refunds_succeeded"`
	RefundsDeclined  int              `json:"refunds_declined"`
	Charged          map[string]int64 `json:"charged"`  // by currency, what succeeded
	Refunded         map[string]int64 `json:"refunded"` // by currency, what succeeded

	// OperationsTwice counts values of metadata.operation_id that more than one charge, or more than
	// one refund, that succeeded has.
	OperationsTwice int `json:"operations_twice"`
	WebhooksPending int `json:"webhooks_pending"`

	// Injected counts faults since the books began: replies_lost, errors_before, errors_after,
	// slow_calls, rate_limited, webhooks_doubled, webhooks_shuffled.
	Injected map[string]int64 `json:"injected"`
}

// Books is everything: for proofs.
type Books struct {
	Totals  Totals         `json:"totals"`
	Charges []BookedCharge `json:"charges"`
	Refunds []BookedRefund `json:"refunds"`
}

// BookedCharge is a charge with the key that made it.
type BookedCharge struct {
	Key string `json:"key"`
	Charge
}

// BookedRefund is a refund with the key that made it.
type BookedRefund struct {
	Key string `json:"key"`
	Refund
}

// Totals sums up the books.
func (p *PSP) Totals() Totals {
	p.books.mu.RLock()
	defer p.books.mu.RUnlock()
	return p.books.totals()
}

// Books returns the books, oldest first.
func (p *PSP) Books() Books {
	p.books.mu.RLock()
	defer p.books.mu.RUnlock()

	b := Books{p.books.totals(), []BookedCharge{}, []BookedRefund{}}
	for _, i := range p.books.charges.all {
		b.Charges = append(b.Charges, BookedCharge{i.key, *i.value})
	}
	for _, i := range p.books.refunds.all {
		b.Refunds = append(b.Refunds, BookedRefund{i.key, *i.value})
	}
	return b
}

// totals needs the lock.
func (b *books) totals() Totals {
	t := Totals{
		Charged: map[string]int64{}, Refunded: map[string]int64{},
		WebhooksPending: len(b.pending), Injected: maps.Clone(b.injected),
	}

	operations := map[string]int{}
	once := func(kind string, metadata map[string]string) {
		id := metadata["operation_id"]
		if id == "" {
			return
		}
		if operations[kind+id]++; operations[kind+id] == 2 {
			t.OperationsTwice++
		}
	}

	for _, i := range b.charges.all {
		if i.value.Status != succeeded {
			t.ChargesDeclined++
			continue
		}
		t.ChargesSucceeded++
		t.Charged[i.value.Currency] += i.value.Amount
		once("charge ", i.value.Metadata)
	}

	for _, i := range b.refunds.all {
		if i.value.Status != succeeded {
			t.RefundsDeclined++
			continue
		}
		t.RefundsSucceeded++
		t.Refunded[i.value.Currency] += i.value.Amount
		once("refund ", i.value.Metadata)
	}
	return t
}

func (p *PSP) showTotals(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, p.Totals())
}

// showBooks streams what Books returns. Charges that are refunded meanwhile may show it already.
func (p *PSP) showBooks(w http.ResponseWriter, _ *http.Request) {
	b := p.books
	b.mu.RLock()
	totals, charges, refunds := b.totals(), b.charges.all, b.refunds.all
	b.mu.RUnlock()

	w.Header().Set("Content-Type", "application/json")
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, `{"totals":%s,"charges":[`, mustJSON(totals))
	for n, i := range charges {
		b.mu.RLock()
		c := BookedCharge{i.key, *i.value}
		b.mu.RUnlock()
		fmt.Fprint(out, separator(n), string(mustJSON(c)))
	}

	fmt.Fprint(out, `],"refunds":[`)
	for n, i := range refunds {
		fmt.Fprint(out, separator(n), string(mustJSON(BookedRefund{i.key, *i.value})))
	}
	fmt.Fprint(out, "]}\n")
	out.Flush()
}

func separator(n int) string {
	if n == 0 {
		return ""
	}
	return ",\n"
}

func (p *PSP) showFaults(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, p.Faults())
}

// changeFaults replaces all: what the body does not name is switched off.
func (p *PSP) changeFaults(w http.ResponseWriter, r *http.Request) {
	var f Faults
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()

	err := d.Decode(&f)
	if err == nil {
		err = p.SetFaults(f)
	}
	if err != nil {
		invalid("faults_invalid", err.Error()).write(w)
		return
	}

	p.log.InfoContext(r.Context(), "faults changed", "faults", f)
	writeJSON(w, http.StatusOK, f)
}
