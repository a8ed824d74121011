package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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

	for _, missing := range []func(plan, []string, accounts) []payments.Command{opening, funding} {
		found, err := findAccounts(ctx, db, s.TenantID, p.currency, names)
		if err != nil {
			return err
		}
		if err := s.process(ctx, db, missing(p, names, found)); err != nil {
			return err
		}
	}

	found, err := findAccounts(ctx, db, s.TenantID, p.currency, names)
	s.SystemAccount, s.Accounts = found.system, append(s.Accounts, found.customers...)
	return err
}

// opening returns the commands that create the missing accounts.
func opening(p plan, names []string, found accounts) (missing []payments.Command) {
	if found.system == nil {
		missing = append(missing, payments.CreateAccount{
			Kind: payments.System, Currency: p.currency,
		})
	}

	exists := map[string]bool{}
	for _, a := range found.customers {
		exists[a.Name] = true
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
func funding(p plan, _ []string, found accounts) (missing []payments.Command) {
	if p.fund == 0 {
		return nil
	}

	for _, id := range found.untouched {
		missing = append(missing, payments.CreatePayment{
			AmountMinor: p.fund, Currency: p.currency,
			SourceAccount: found.system.ID, DestinationAccount: id,
			Description: "opening balance", MayFund: true,
		})
	}
	return missing
}

// chunk is the number of commands per transaction, which locks the system account while it lasts.
const chunk = 500

// process executes commands on behalf of the client, each under a key of its own. The caller's
// look-up prevents doing one twice, not the key, which is forgotten after some days.
func (s *seeded) process(
	ctx context.Context, db *pgxpool.Pool, commands []payments.Command,
) error {
	processor := payments.Processor{
		DB: db, Retention: idempotency.DefaultRetention, Render: render,
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
			return fmt.Errorf("make accounts and payments: %w", err)
		}

		for _, a := range answers {
			if a.Response.Status != statusDone {
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

// The audit trail shows these in place of an HTTP request.
const (
	method = "CLI"
	route  = "oncepay seed"
)

const (
	statusDone    = 201
	statusRefused = 422
)

// render builds the response that is stored under the key.
func render(o payments.Outcome) idempotency.Response {
	status, shown := statusDone, any(o.Account)
	switch {
	case o.Refusal != nil:
		status, shown = statusRefused, o.Refusal
	case o.Payment != nil:
		shown = o.Payment
	}

	body, _ := json.Marshal(shown) // a plain struct: cannot fail
	return idempotency.Response{Status: status, ContentType: "application/json", Body: body}
}

// accounts are those of a tenant in one currency.
type accounts struct {
	system    *payments.Account
	customers []payments.Account // in the order of the names asked for
	untouched []uuid.UUID        // those without a ledger entry
}

// Names are not unique: the oldest account of a name counts.
const readAccounts = `
SELECT DISTINCT ON (kind, array_position($3::text[], name)) id, kind, name, balance_minor, created_at, entry_count
FROM accounts
WHERE tenant_id = $1 AND currency = $2 AND (kind = 'system' OR name = ANY ($3::text[]))
ORDER BY kind, array_position($3::text[], name), id`

func findAccounts(
	ctx context.Context, db *pgxpool.Pool, tenantID uuid.UUID, currency string, names []string,
) (accounts, error) {
	rows, err := db.Query(ctx, readAccounts, tenantID, currency, names) // ForEachRow returns it
	if err != nil {
		return accounts{}, fmt.Errorf("find accounts: %w", err)
	}

	var found accounts
	a := payments.Account{Currency: currency}
	var entries int64
	_, err = pgx.ForEachRow(rows, []any{
		&a.ID, &a.Kind, &a.Name, &a.BalanceMinor, &a.CreatedAt, &entries,
	}, func() error {
		a := a // each row has its own
		a.CreatedAt = a.CreatedAt.UTC()
		if a.Kind == payments.System {
			found.system = &a
			return nil
		}

		found.customers = append(found.customers, a)
		if entries == 0 {
			found.untouched = append(found.untouched, a.ID)
		}
		return nil
	})
	if err != nil {
		return accounts{}, fmt.Errorf("find accounts: %w", err)
	}
	return found, nil
}
