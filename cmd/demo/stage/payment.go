package stage

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/cmd/demo/local"
	"github.com/oncepay/oncepay/cmd/demo/page"
	"github.com/oncepay/oncepay/internal/fakepsp"
	"github.com/oncepay/oncepay/internal/payments"
)

// row is what was written about a payment in one place.
type row struct {
	Store, Table, ID string
	Values           [][2]string
}

// shown is the payment whose rows the page shows: the last one from the page, or of the traffic one
// that stays long enough to be read.
type shown struct {
	id       uuid.UUID
	floor    int64 // of the outbox, when it was made
	since    time.Time
	at       time.Time
	rows     []page.Row
	known    map[string]int
	charging bool // the PSP is asked until it has it
}

const (
	changeAfter = 10 * time.Second // another payment of the traffic
	settledIn   = 20 * time.Second // afterwards its rows hardly change
	readSeldom  = 5 * time.Second
)

// lastPayment is the last one that the visitor has made.
type lastPayment struct {
	mu    sync.Mutex
	id    uuid.UUID
	floor int64
}

func (l *lastPayment) set(id uuid.UUID, floor int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.id, l.floor = id, floor
}

func (l *lastPayment) get() (uuid.UUID, int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.id, l.floor
}

// The newest event of a payment tells of one that was made or changed just now.
const readNewest = `
SELECT aggregate_id::uuid, id - 1 FROM outbox_events
WHERE aggregate_type = 'payments' AND aggregate_version = 1 AND id > (SELECT max(id) - 50 FROM outbox_events)
ORDER BY id DESC LIMIT 1`

// Each place is read by an index, the outbox from where it was when the payment was made.
const readPayment = `
WITH p AS MATERIALIZED (SELECT * FROM payments WHERE id = $1 AND tenant_id IN (SELECT id FROM tenants)),
o AS MATERIALIZED (
  SELECT * FROM outbox_events WHERE id > $2 AND aggregate_type = 'payments' AND aggregate_id = $1::text ORDER BY id
)
SELECT 'postgres', 'idempotency_keys', k.key, ARRAY['key', k.key, 'status', k.status::text, 'request_id', k.request_id]
FROM p JOIN idempotency_keys k ON k.key_hash =
  substr(sha256(uuid_send(p.tenant_id) || uuid_send(p.client_id) || convert_to(p.idempotency_key, 'UTF8')), 1, 16)
UNION ALL
SELECT 'postgres', 'payments', p.id::text, ARRAY['status', p.status, 'version', p.version::text,
  'amount_minor', p.amount_minor::text, 'currency', p.currency, 'payment_method', p.payment_method]
FROM p
UNION ALL
SELECT 'postgres', 'psp_operations', q.id::text, ARRAY['state', q.state, 'tries', q.tries::text, 'reference', q.reference, 'id', q.id::text]
FROM p JOIN psp_operations q ON q.payment_id = p.id AND q.kind = 'charge'
UNION ALL
SELECT 'postgres', 'ledger_entries', e.id::text, ARRAY['account_id', e.account_id::text, 'entry_no', e.entry_no::text,
  'amount_minor', e.amount_minor::text, 'balance_after_minor', e.balance_after_minor::text]
FROM p JOIN ledger_entries e ON e.account_id IN (p.source_account, p.destination_account) AND e.payment_id = p.id
UNION ALL
SELECT 'postgres', 'outbox_events', o.event_id::text, ARRAY['id', o.id::text, 'event_type', o.event_type,
  'aggregate_version', o.aggregate_version::text, 'event_id', o.event_id::text]
FROM o
UNION ALL
SELECT 'postgres', 'inbox_events', i.consumer || i.event_id, ARRAY['consumer', i.consumer, 'event_id', i.event_id::text]
FROM o CROSS JOIN (VALUES ('statements'), ('webhooks')) c (name)
JOIN inbox_events i ON i.consumer = c.name AND i.event_id = o.event_id
UNION ALL
SELECT 'postgres', 'webhook_deliveries', d.id::text, ARRAY['event_type', d.event_type, 'state', d.state, 'tries', d.tries::text]
FROM o CROSS JOIN webhook_endpoints w JOIN webhook_deliveries d ON d.endpoint_id = w.id AND d.event_id = o.event_id`

// read returns the payment with what is known of it.
func (v *shown) read(ctx context.Context, s *Stage) *page.Payment {
	v.choose(ctx, s)
	if v.id == uuid.Nil {
		return nil
	}

	if time.Since(v.since) < settledIn || time.Since(v.at) > readSeldom {
		v.at = time.Now()
		v.update(ctx, s)
	}
	return &page.Payment{ID: v.id.String(), Rows: append([]page.Row{}, v.rows...)}
}

func (v *shown) choose(ctx context.Context, s *Stage) {
	id, floor := s.last.get()
	if id == uuid.Nil {
		if v.id != uuid.Nil && time.Since(v.since) < changeAfter {
			return
		}
		if s.db.QueryRow(ctx, readNewest).Scan(&id, &floor) != nil {
			return // there is none yet
		}
	}
	if id != v.id {
		*v = shown{id: id, floor: floor, since: time.Now(), known: map[string]int{}}
	}
}

// update adds what is new, and changes what has changed.
func (v *shown) update(ctx context.Context, s *Stage) {
	rows, _ := s.db.Query(ctx, readPayment, v.id, v.floor) // CollectRows returns its error
	found, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (row, error) {
		var one row
		var flat []string
		err := r.Scan(&one.Store, &one.Table, &one.ID, &flat)
		for i := 0; i+1 < len(flat); i += 2 {
			one.Values = append(one.Values, [2]string{flat[i], flat[i+1]})
		}
		return one, err
	})
	if err != nil {
		return // with the next state
	}

	found = append(found, s.topic.about(v.id.String())...)
	found = append(found, v.charges(ctx, s, found)...)
	found = append(found, s.webhooks(found)...)
	for _, r := range found {
		key := r.Store + " " + r.Table + " " + r.ID
		place, known := v.known[key]
		if !known {
			place = len(v.rows)
			v.known[key] = place
			v.rows = append(v.rows, page.Row{Store: r.Store, Table: r.Table, Elapsed: s.elapsed()})
		}
		v.rows[place].Values = r.Values
	}
}

// charges asks the PSP for the charge of an operation, until it has one.
func (v *shown) charges(ctx context.Context, s *Stage, found []row) (rows []row) {
	for _, r := range found {
		if r.Table != "psp_operations" || v.charging {
			continue
		}
		id, err := uuid.Parse(r.ID)
		if err != nil {
			continue
		}
		charges, err := s.chargesOf(ctx, id)
		if err != nil {
			continue // it is down, or frozen
		}
		for _, c := range charges {
			v.charging = true
			rows = append(rows, row{"psp", "charges", c.ID, [][2]string{
				{"status", c.Status}, {"amount", strconv.FormatInt(c.Amount, 10)}, {"id", c.ID},
			}})
		}
	}
	return rows
}

// pspMax is short: a frozen PSP must not hold up the page.
const pspMax = 300 * time.Millisecond

// chargesOf returns what the PSP has in its books under the key of an operation.
func (s *Stage) chargesOf(ctx context.Context, operation uuid.UUID) ([]fakepsp.Charge, error) {
	ctx, cancel := context.WithTimeout(ctx, pspMax)
	defer cancel()

	key := payments.Operation{ID: operation, Kind: payments.Charge}.Key()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Service.PSP()+"/v1/charges?key="+key, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the PSP: %w", err)
	}
	r.Header.Set("Authorization", "Bearer "+local.PSPKey)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, fmt.Errorf("ask the PSP: %w", err)
	}
	defer response.Body.Close()

	var answer struct {
		Data []fakepsp.Charge `json:"data"`
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask the PSP: %d (%w)", response.StatusCode, err)
	}
	return answer.Data, nil
}

// webhooks are the events of the payment that the receiver has got.
func (s *Stage) webhooks(found []row) (rows []row) {
	for _, r := range found {
		if r.Table != "outbox_events" {
			continue
		}
		if place, came := s.Received(r.ID); came {
			rows = append(rows, row{"webhook", "received", r.ID, [][2]string{
				r.Values[1], {"place", strconv.Itoa(place + 1)},
			}})
		}
	}
	return rows
}
