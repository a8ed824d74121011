package stage

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/cmd/demo/page"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/payments"
)

// held is a transaction that has written to the outbox and stays open. It opens an account, as an
// operator may, so that its event is a true one when it commits at last.
type held struct {
	mu    sync.Mutex
	conn  *pgxpool.Conn // nil: none is open
	tx    pgx.Tx
	xid   string
	event uuid.UUID
	since time.Time
}

func (h *held) open() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.conn != nil
}

const readTenant = `SELECT tenant_id, clock_timestamp() FROM clients WHERE id = $1`

// begin opens the account. Nothing else touches its row, so nothing waits for it.
func (h *held) begin(ctx context.Context, db *pgxpool.Pool, client uuid.UUID) (err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conn != nil {
		return page.Refused("a transaction is open already")
	}

	// It outlives the request.
	ctx = context.WithoutCancel(ctx)
	if h.conn, err = db.Acquire(ctx); err != nil {
		return fmt.Errorf("open a transaction: %w", err)
	}
	defer func() {
		if err != nil {
			h.release()
		}
	}()

	if h.tx, err = h.conn.Begin(ctx); err != nil {
		return fmt.Errorf("open a transaction: %w", err)
	}
	open := payments.Request{
		Request: idempotency.Request{ClientID: client}, Method: "DEMO",
		Command: payments.CreateAccount{Kind: payments.Customer, Currency: "USD", Name: "held open"},
	}
	if err := h.tx.QueryRow(ctx, readTenant, client).Scan(&open.TenantID, &open.At); err != nil {
		return fmt.Errorf("find the visitor's tenant: %w", err)
	}
	open.At = open.At.UTC().Truncate(time.Millisecond)
	opened, err := payments.Execute(ctx, h.tx, []payments.Request{open})
	if err != nil {
		return fmt.Errorf("open an account: %w", err)
	}
	if h.event, err = uuid.NewV7(); err != nil {
		return fmt.Errorf("make an event: %w", err)
	}
	err = outbox.Append(ctx, h.tx, []outbox.Event{{
		ID: h.event, TenantID: open.TenantID,
		AggregateType: "accounts", AggregateID: opened[0].Account.ID.String(), AggregateVersion: 1,
		Type: payments.AccountOpened, Payload: opened[0].JSON,
		Headers: map[string]string{"ce_tenantid": open.TenantID.String()},
	}})
	if err != nil {
		return fmt.Errorf("append the event: %w", err)
	}

	h.since = time.Now()
	err = h.tx.QueryRow(ctx, `SELECT pg_current_xact_id()::text`).Scan(&h.xid)
	return err
}

// close commits what is open, if anything is.
func (h *held) close(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conn == nil {
		return nil
	}

	defer h.release()
	if err := h.tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

func (h *held) release() {
	if h.tx != nil {
		_ = h.tx.Rollback(context.Background()) // after a commit there is nothing to roll back
	}
	h.conn.Release()
	h.conn, h.tx = nil, nil
}

func (s *Stage) openTransaction(ctx context.Context) (string, error) {
	if err := s.held.begin(ctx, s.db, s.Visitor.ClientID); err != nil {
		return "", err
	}
	s.Timeline.Add(page.Fault, "transaction %s has written to the outbox and stays open", s.held.xid)
	return "transaction " + s.held.xid + " has written to the outbox and stays open", nil
}

func (s *Stage) closeTransaction(ctx context.Context) (string, error) {
	if !s.held.open() {
		return "", page.Refused("no transaction is open")
	}
	xid, since := s.held.xid, s.held.since
	if err := s.held.close(ctx); err != nil {
		return "", err
	}
	text := fmt.Sprintf("transaction %s has committed after %.1f s; its event is sent now", xid, time.Since(since).Seconds())
	s.Timeline.Add(page.Recovery, "%s", text)
	return text, nil
}
