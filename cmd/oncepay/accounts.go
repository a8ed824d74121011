package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

// openAccounts creates the missing accounts and funds those that never saw a payment. Both go the
// way of every payment, so the books balance and the events are sent. The next run finds what an
// interrupted one did.
func (s *seeded) openAccounts(ctx context.Context, conn *pgx.Conn, p plan) error {
	s.Accounts = []payments.Account{}
	if p.currency == "" {
		return nil
	}

	names := make([]string, p.accounts)
	for i := range names {
		names[i] = fmt.Sprintf("seed %d", i+1)
	}

	found, err := findAccounts(ctx, conn, s.TenantID, p.currency, names)
	if err != nil {
		return err
	}

	var missing []payments.Command
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

	if err := s.process(ctx, conn, missing); err != nil {
		return fmt.Errorf("open accounts: %w", err)
	}
	// Look again for the accounts with their ids, and for the system account to pay from.
	if found, err = findAccounts(ctx, conn, s.TenantID, p.currency, names); err != nil {
		return err
	}

	if p.fund > 0 {
		var funding []payments.Command
		// Only accounts without an entry are funded, so a second run pays nothing.
		for _, id := range found.untouched {
			funding = append(funding, payments.CreatePayment{
				AmountMinor: p.fund, Currency: p.currency,
				SourceAccount: found.system.ID, DestinationAccount: id,
				Description: "opening balance", MayFund: true,
			})
		}

		if err := s.process(ctx, conn, funding); err != nil {
			return fmt.Errorf("fund accounts: %w", err)
		}
		if found, err = findAccounts(ctx, conn, s.TenantID, p.currency, names); err != nil {
			return err
		}
	}

	s.SystemAccount, s.Accounts = found.system, found.customers
	return nil
}

// chunk is the number of commands per transaction, which locks the system account while it lasts.
const chunk = 500

// process executes commands on behalf of the client, each under a key of its own. The caller's
// look-up prevents doing one twice, not the key, which is forgotten after some days.
func (s *seeded) process(ctx context.Context, conn *pgx.Conn, commands []payments.Command) error {
	// A pool, not conn: the outcome of a COMMIT whose reply was lost is looked up on another
	// connection.
	pool, err := openPool(ctx, conn)
	if err != nil {
		return err
	}
	defer pool.Close()

	processor := payments.Processor{
		DB: pool, Retention: idempotency.DefaultRetention, Render: render,
	}
	for some := range slices.Chunk(commands, chunk) {
		requests := make([]payments.Request, len(some))
		for i, c := range some {
			id := uuid.NewString()
			canonical, err := json.Marshal(c)
			if err != nil {
				return fmt.Errorf("encode command: %w", err)
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

		answers, err := processor.Process(ctx, requests)
		for err == nil && awaitBusy(ctx, &processor, requests, answers) {
			answers, err = processor.Process(ctx, requests) // those that are done are replays now
		}
		if err != nil {
			return err
		}

		for _, a := range answers {
			if a.Response.Status != statusDone {
				return fmt.Errorf("refused: %s %s", a.State, a.Response.Body)
			}
		}
	}
	return nil
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
	ctx context.Context, conn *pgx.Conn, tenantID uuid.UUID, currency string, names []string,
) (accounts, error) {
	rows, err := conn.Query(ctx, readAccounts, tenantID, currency, names) // ForEachRow returns it
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
