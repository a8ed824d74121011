package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/payments"
)

const seedUsage = `Usage: oncepay seed -tenant name -client name [flags]

Makes what is missing of: the tenant, the client, the system account of the currency, and customer accounts named
"seed 1", "seed 2" and so on, each funded by a payment from the system account. A new credential is made each time; its
token is shown this once and stored nowhere. Amounts are in minor units: 100000 is 1000.00 USD.

Examples:
  oncepay seed -tenant demo -client shop
  oncepay seed -tenant demo -client shop -scopes accounts:fund -currency USD -accounts 2 -fund 100000 -json
  oncepay seed -tenant demo -client shop -currency EUR -accounts 10 -credential=false
`

// plan is what the flags of seed ask for.
type plan struct {
	tenant, client string
	credential     bool
	scopes         []string
	currency       string // empty: no accounts
	accounts       int
	fund           int64
}

// seeded is the result, and the form of -json.
type seeded struct {
	TenantID      uuid.UUID          `json:"tenant_id"`
	ClientID      uuid.UUID          `json:"client_id"`
	CredentialID  string             `json:"credential_id,omitempty"`
	Token         string             `json:"token,omitempty"` // revealed, on purpose
	Scopes        []string           `json:"scopes,omitempty"`
	SystemAccount *payments.Account  `json:"system_account,omitempty"`
	Accounts      []payments.Account `json:"accounts"`
}

func (c *call) seed(ctx context.Context, args []string) error {
	f := newFlags("seed", seedUsage)
	p, err := c.parsePlan(f, args)
	if err != nil {
		return err
	}

	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))

	// Two seeds at once would both find an account missing. The lock goes with the connection.
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock(hashtextextended('oncepay seed', 0))`); err != nil {
		return fmt.Errorf("wait for another seed: %w", err)
	}

	var s seeded
	if err := s.findOrCreateClient(ctx, conn, p); err != nil {
		return err
	}

	if err := s.openAccounts(ctx, conn, p); err != nil {
		return err
	}

	// Last, so that no later failure loses the token.
	if err := s.createCredential(ctx, conn, p); err != nil {
		return err
	}

	return c.show(f, s, func(w io.Writer) { s.print(w, p) })
}

// parsePlan reads and checks the flags before anything is touched. It reports all problems
// together.
func (c *call) parsePlan(f *flags, args []string) (plan, error) {
	var p plan
	tenant, client := f.tenant(), f.client()
	f.BoolVar(&p.credential, "credential", true, "make a credential")
	scopes := f.scopes()
	f.StringVar(&p.currency, "currency", "", "ISO 4217 `code` of the accounts")
	f.IntVar(&p.accounts, "accounts", 0, "`number` of customer accounts there should be, up to 10000")
	f.amount(&p.fund, "fund", "`amount` in minor units that each account without a payment gets")
	if _, err := f.parse(c, args); err != nil {
		return plan{}, err
	}

	p.tenant, p.client = *tenant, *client

	check := checks{flags: f}
	check.name("-tenant", p.tenant)
	check.name("-client", p.client)
	check.that(p.currency == "" || payments.KnownCurrency(p.currency),
		"-currency must be an ISO 4217 code in capitals, such as USD")
	check.that(p.accounts >= 0 && p.accounts <= 10_000, "-accounts must be from 0 to 10000")
	check.that(p.accounts == 0 || p.currency != "", "-accounts needs -currency")
	check.that(p.fund >= 0 && p.fund <= payments.MaxAmount,
		fmt.Sprintf("-fund must be from 0 to %d", int64(payments.MaxAmount)))
	check.that(p.fund == 0 || p.accounts > 0, "-fund needs -accounts")
	check.that(*scopes == "" || p.credential, "-scopes needs a credential")
	p.scopes = check.scopes(*scopes)
	return p, check.err()
}

func (s *seeded) findOrCreateClient(ctx context.Context, conn *pgx.Conn, p plan) error {
	// One transaction: no tenant without its client is left behind.
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) (err error) {
		s.TenantID, err = credentials.FindTenant(ctx, tx, p.tenant)
		if errors.Is(err, credentials.ErrNotFound) {
			s.TenantID, err = credentials.CreateTenant(ctx, tx, p.tenant)
		}
		if err != nil {
			return err
		}

		s.ClientID, err = credentials.FindClient(ctx, tx, s.TenantID, p.client)
		if errors.Is(err, credentials.ErrNotFound) {
			s.ClientID, err = credentials.CreateClient(ctx, tx, s.TenantID, p.client)
		}
		return err
	})
}

func (s *seeded) createCredential(ctx context.Context, conn *pgx.Conn, p plan) error {
	if !p.credential {
		return nil
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		token, err := credentials.Create(ctx, tx, s.ClientID, p.scopes)
		s.CredentialID, s.Token, s.Scopes = token.ID(), token.Reveal(), p.scopes
		return err
	})
}

func (s *seeded) print(w io.Writer, p plan) {
	row(w, "tenant", s.TenantID, p.tenant)
	row(w, "client", s.ClientID, p.client)

	if a := s.SystemAccount; a != nil {
		row(w, "system account", a.ID, money(a.BalanceMinor, a.Currency))
	}
	for _, a := range s.Accounts {
		row(w, "account", a.ID, money(a.BalanceMinor, a.Currency), a.Name)
	}

	if s.Token != "" {
		row(w, "credential", s.CredentialID, strings.Join(s.Scopes, ","))
		fmt.Fprintf(w, "\nThe token, shown this once:\n%s\n", s.Token)
	}
}
