package stage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
)

// What one key did.
const readKey = `
SELECT (SELECT count(*) FROM payments WHERE client_id = $1 AND idempotency_key = $2 AND source_account = ANY($3)),
  (SELECT count(*) FROM idempotency_keys WHERE client_id = $1 AND key = $2),
  (SELECT count(*) FROM ledger_entries e JOIN payments p ON p.id = e.payment_id
   WHERE p.client_id = $1 AND p.idempotency_key = $2 AND p.source_account = ANY($3) AND e.account_id IN (p.source_account, p.destination_account)),
  (SELECT coalesce(-sum(e.amount_minor), 0)::bigint FROM ledger_entries e JOIN payments p ON p.id = e.payment_id
   WHERE p.client_id = $1 AND p.idempotency_key = $2 AND p.source_account = ANY($3) AND e.account_id = p.source_account)`

// done is what one key did.
type done struct{ payments, answers, entries, paid int64 }

func (s *Stage) doneUnder(ctx context.Context, key string) (d done, err error) {
	source := []uuid.UUID{s.Visitor.Accounts[0].ID}
	row := s.db.QueryRow(ctx, readKey, s.Visitor.ClientID, key, source)
	if err := row.Scan(&d.payments, &d.answers, &d.entries, &d.paid); err != nil {
		return d, fmt.Errorf("read what the key did: %w", err)
	}
	return d, nil
}

// once is one payment of 25.00 USD.
var once = done{payments: 1, answers: 1, entries: 2, paid: amount}

func (s *Stage) playLostReply(ctx context.Context) (string, error) {
	o := s.newOrder("")
	lost, _ := s.Service.CommitReplies()
	s.Service.LoseCommitReply(o.key)
	first, err := s.payAndShow(ctx, o)
	if err != nil {
		return "", err
	}
	if now, _ := s.Service.CommitReplies(); now != lost+1 {
		return "", fmt.Errorf("%d replies to COMMIT were lost, not 1", now-lost)
	}

	again, err := s.payAndShow(ctx, o)
	if err != nil {
		return "", err
	}
	if first.Status != http.StatusCreated || !again.Replayed() || !bytes.Equal(first.Body, again.Body) {
		return "", fmt.Errorf("the answers were %s and %s", words(first), words(again))
	}
	d, err := s.doneUnder(ctx, o.key)
	if err == nil && d != once {
		err = fmt.Errorf("the key did %+v", d)
	}
	return fmt.Sprintf("1 reply to COMMIT was lost; the API asked again and answered 201, the client's repeat "+
		"got the same %d bytes, and the tables have %d payment with %d entries: 25.00 USD were paid once",
		len(again.Body), d.payments, d.entries), err
}

func (s *Stage) playOtherAmount(ctx context.Context) (string, error) {
	o := s.newOrder("")
	first, err := s.payAndShow(ctx, o)
	if err != nil {
		return "", err
	}
	other, err := s.post(ctx, o.other(100))
	if err != nil {
		return "", err
	}
	if first.Status != http.StatusCreated || other.Status != http.StatusUnprocessableEntity {
		return "", fmt.Errorf("the answers were %s and %s", words(first), words(other))
	}

	d, err := s.doneUnder(ctx, o.key)
	if err == nil && d != once {
		err = fmt.Errorf("the key did %+v", d)
	}
	return fmt.Sprintf("26.00 USD under the key of 25.00 USD were answered %s; "+
		"the key has %d answer and %d payment of 25.00 USD", words(other), d.answers, d.payments), err
}

const readOperation = `SELECT id, state, tries FROM psp_operations WHERE payment_id = $1 AND kind = 'charge'`

// The token makes fakepsp charge, and close the connection in place of the reply.
func (s *Stage) playLostCharge(ctx context.Context) (string, error) {
	a, err := s.payAndShow(ctx, s.newOrder("tok_lose_reply"))
	if err != nil {
		return "", err
	}
	var m made
	if err := json.Unmarshal(a.Body, &m); err != nil || a.Status != http.StatusCreated {
		return "", fmt.Errorf("the answer was %s", words(a))
	}

	settled, err := s.visitor.Await(ctx, paymentsPath+"/"+m.ID.String())
	if err != nil {
		return "", err
	}
	var operation uuid.UUID
	var state string
	var tries int
	if err := s.db.QueryRow(ctx, readOperation, m.ID).Scan(&operation, &state, &tries); err != nil {
		return "", fmt.Errorf("read the operation: %w", err)
	}
	charges, err := s.chargesOf(ctx, operation)
	if err != nil {
		return "", err
	}

	if state != "succeeded" || len(charges) != 1 || charges[0].Amount != amount {
		err = fmt.Errorf("the operation is %s, with %d charges; %s", state, len(charges), words(settled))
	}
	return fmt.Sprintf("the PSP's reply was lost, and its books have %d charge of 25.00 USD under the "+
		"operation's key; the payment is completed, and the worker's calls were %d", len(charges), tries), err
}

// playHeld makes payments beside an open transaction.
func (s *Stage) playHeld(ctx context.Context) (string, error) {
	if s.held.open() {
		if err := s.held.close(ctx); err != nil {
			return "", err
		}
	}
	if _, err := s.openTransaction(ctx); err != nil {
		return "", err
	}
	defer func() { _ = s.held.close(ctx) }() // it is closed below unless something failed
	xid, event := s.held.xid, s.held.event

	began := time.Now()
	before, err := s.newestEvent(ctx)
	if err != nil {
		return "", err
	}
	if _, err := s.payMany(ctx, 100, ""); err != nil {
		return "", err
	}
	answered := time.Since(began)
	n, err := s.awaitEffects(ctx, before, 100)
	if err != nil {
		return "", err
	}
	arrived := time.Since(began)
	if !s.held.open() {
		return "", errors.New("the transaction was closed meanwhile")
	}

	if _, err := s.closeTransaction(ctx); err != nil {
		return "", err
	}
	closed := time.Now()
	err = s.until(ctx, "the late event has had its effect", func(ctx context.Context) (came bool, err error) {
		err = s.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM inbox_events WHERE consumer = 'statements' AND event_id = $1)`, event).Scan(&came)
		return came, err
	})
	return fmt.Sprintf("while transaction %s was open, 100 payments were answered within %s and all %d events of theirs "+
		"had passed Kafka and the consumer after %s; its own event did %s after COMMIT",
		xid, round(answered), n, round(arrived), round(time.Since(closed))), err
}
