package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

// openAccounts creates the missing accounts and funds those that never saw a payment. Both go the
// way of every payment, so the books balance and the events are sent. The next run finds what an
// interrupted one did.
func (s *seeded) openAccounts(ctx context.Context, db *pgxpool.Pool, p plan) error {
	s.Accounts = []payments.Account{}
	if p.currency == "" {
		return nil
	}

	names := make([]string, p.accounts)
	for i := range names {
		names[i] = fmt.Sprintf("seed %d", i+1)
	}

	found, err := findAccounts(ctx, db, s.TenantID, p.currency, names)
	if err != nil {
		return err
	}
	if err := s.process(ctx, db, found.opening(p, names)); err != nil {
		return fmt.Errorf("open accounts: %w", err)
	}

	// Look again for the accounts with their ids, and for the system account to pay from.
	if found, err = findAccounts(ctx, db, s.TenantID, p.currency, names); err != nil {
		return err
	}
	if p.fund > 0 {
		if err := s.process(ctx, db, found.funding(p.fund)); err != nil {
			return fmt.Errorf("fund accounts: %w", err)
		}
		if found, err = findAccounts(ctx, db, s.TenantID, p.currency, names); err != nil {
			return err
		}
	}

	s.SystemAccount, s.Clearing = found.the(payments.System), found.the(payments.Clearing)
	for _, a := range found {
		if a.Kind == payments.Customer {
			s.Accounts = append(s.Accounts, a.Account)
		}
	}
	return nil
}

// opening returns the commands that create what is missing.
func (found accounts) opening(p plan, names []string) (missing []payments.Command) {
	if found.the(payments.System) == nil {
		missing = append(missing, payments.CreateAccount{Kind: payments.System, Currency: p.currency})
	}
	if p.cards && found.the(payments.Clearing) == nil {
		missing = append(missing, payments.CreateAccount{Kind: payments.Clearing, Currency: p.currency})
	}

	exists := map[string]bool{}
	for _, a := range found {
		exists[a.Name] = a.Kind == payments.Customer
	}
	for _, name := range names {
		if !exists[name] {
			missing = append(missing, payments.CreateAccount{
				Kind: payments.Customer, Currency: p.currency, Name: name,
			})
		}
	}
	return missing
}

// funding returns the payments to accounts without an entry, so that a second run pays nothing.
func (found accounts) funding(amount int64) (missing []payments.Command) {
	for _, a := range found {
		if a.Kind == payments.Customer && a.Entries == 0 {
			missing = append(missing, payments.CreatePayment{
				AmountMinor: amount, Currency: a.Currency,
				SourceAccount: found.the(payments.System).ID, DestinationAccount: a.ID,
				Description: "opening balance", MayFund: true,
			})
		}
	}
	return missing
}

// The audit trail shows these in place of an HTTP request.
const (
	method = "CLI"
	route  = "oncepay seed"
)

// chunk is the number of commands per transaction, which locks the system account while it lasts.
const chunk = 500

// process executes commands on behalf of the client, each under a key of its own. The caller's
// look-up prevents doing one twice, not the key, which is forgotten after some days.
func (s *seeded) process(
	ctx context.Context, db *pgxpool.Pool, commands []payments.Command,
) error {
	processor := payments.Processor{
		DB: db, Retention: idempotency.DefaultRetention, Render: httpapi.Render,
	}

	for some := range slices.Chunk(commands, chunk) {
		requests, err := s.requests(some)
		if err != nil {
			return err
		}

		answers, err := processor.Process(ctx, requests)
		for err == nil && awaitBusy(ctx, &processor, requests, answers) {
			answers, err = processor.Process(ctx, requests) // those that are done are replays now
		}
		if err != nil {
			return err
		}

		// Such as a balance that would overflow: the accounts would not be what was asked for.
		for _, a := range answers {
			if a.Response.Status != http.StatusCreated {
				return fmt.Errorf("refused: %s %s", a.State, a.Response.Body)
			}
		}
	}
	return nil
}

func (s *seeded) requests(commands []payments.Command) ([]payments.Request, error) {
	requests := make([]payments.Request, len(commands))
	for i, c := range commands {
		id := uuid.NewString()

		canonical, err := json.Marshal(c)
		if err != nil {
			return nil, fmt.Errorf("encode command: %w", err)
		}

		requests[i] = payments.Request{
			Request: idempotency.Request{
				TenantID: s.TenantID, ClientID: s.ClientID, Key: "seed-" + id, RequestID: id,
				Fingerprint: idempotency.NewFingerprint(
					s.TenantID, method, route, nil, canonical),
			},
			Method: method, Route: route, Command: c,
		}
	}
	return requests, nil
}

// awaitBusy waits for the accounts of a Busy request: the API may be paying from the system
// account. It reports whether to process requests again.
func awaitBusy(
	ctx context.Context, p *payments.Processor,
	requests []payments.Request, answers []idempotency.Answer,
) bool {
	busy := slices.IndexFunc(answers, func(a idempotency.Answer) bool {
		return a.State == idempotency.Busy
	})
	return busy >= 0 && p.Await(ctx, requests[busy])
}

// accounts are those of a tenant in one currency: customers in the order of the names asked for,
// and the system and clearing accounts.
type accounts []seedAccount

type seedAccount struct {
	payments.Account
	Entries int64
}

// the returns the only account of this kind, or nil.
func (found accounts) the(kind payments.Kind) *payments.Account {
	for i := range found {
		if found[i].Kind == kind {
			return &found[i].Account
		}
	}
	return nil
}

// Names are not unique: the oldest account of a name counts.
const readAccounts = `
SELECT DISTINCT ON (kind, array_position($3::text[], name))
       id, currency, kind, name, balance_minor, held_minor, created_at, entry_count
FROM accounts
WHERE tenant_id = $1 AND currency = $2 AND (kind IN ('system', 'clearing') OR name = ANY ($3::text[]))
ORDER BY kind, array_position($3::text[], name), id`

func findAccounts(
	ctx context.Context, db *pgxpool.Pool, tenantID uuid.UUID, currency string, names []string,
) (accounts, error) {
	rows, _ := db.Query(ctx, readAccounts, tenantID, currency, names) // CollectRows returns its error
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[seedAccount])
	if err != nil {
		return nil, fmt.Errorf("find accounts: %w", err)
	}
	return found, nil
}
