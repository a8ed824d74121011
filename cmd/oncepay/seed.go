package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/program"
)

// plan is what the flags of seed ask for.
type plan struct {
	clientName
	credential bool
	scopes     []string
	currency   string // empty: no accounts
	accounts   int
	fund       int64
	cards      bool // a clearing account
}

// seeded is the result, and the form of --json.
type seeded struct {
	TenantID      uuid.UUID          `json:"tenant_id"`
	ClientID      uuid.UUID          `json:"client_id"`
	CredentialID  string             `json:"credential_id,omitempty"`
	Token         string             `json:"token,omitempty"` // revealed, on purpose
	Scopes        []string           `json:"scopes,omitempty"`
	SystemAccount *payments.Account  `json:"system_account,omitempty"`
	Clearing      *payments.Account  `json:"clearing_account,omitempty"`
	Accounts      []payments.Account `json:"accounts"`
}

func (o operator) seed() *cobra.Command {
	seed := &cobra.Command{
		Use:   "seed",
		Short: "Create a tenant, a client, a credential and funded accounts, what is missing of them",
		Long: `Creates what is missing of: the tenant, the client, the system account of the currency, and
customer accounts named "seed 1", "seed 2" and so on, each funded by a payment from the system
account. With --cards also the clearing account of the currency: from then on the tenant takes
payments by card in it, so a payment service provider has to be configured for the worker. A new credential is made each time; its token is shown this once and stored nowhere.
Amounts are in minor units: 100000 is 1000.00 USD.`,
		Example: `  oncepay seed --tenant demo --client shop
  oncepay seed --tenant demo --client shop --currency USD --accounts 2 --fund 100000 --json
  oncepay seed --tenant demo --client shop --currency EUR --accounts 10 --credential=false
  oncepay seed --tenant demo --client shop --currency USD --cards --credential=false`,
		GroupID: asOperator,
	}

	var p plan
	p.flags(seed)
	scopesFlag(seed, &p.scopes)
	program.Flag(seed, &p.currency, "currency", "CODE", "ISO 4217 code of the accounts",
		parseCurrency)
	program.Flag(seed, &p.fund, "fund", "AMOUNT",
		"minor units that each account without a payment gets", parseAmount)

	f := seed.Flags()
	f.IntVar(&p.accounts, "accounts", 0, "customer accounts there should be, up to 10000")
	f.BoolVar(&p.cards, "cards", false, "open the clearing account, which enables payments by card")
	f.BoolVar(&p.credential, "credential", true, "make a credential")

	seed.RunE = func(c *cobra.Command, _ []string) error {
		if err := p.check(); err != nil {
			return err
		}

		s, err := o.makeMissing(c.Context(), p)
		if err != nil {
			return err
		}
		return program.Show(c, s, func(w io.Writer) { s.print(w, p) })
	}
	return seed
}

// check looks at the flags together, before anything is touched.
func (p plan) check() error {
	switch {
	case p.accounts < 0 || p.accounts > 10_000:
		return errors.New("--accounts must be from 0 to 10000")
	case p.accounts > 0 && p.currency == "":
		return errors.New("--accounts needs --currency")
	case p.cards && p.currency == "":
		return errors.New("--cards needs --currency")
	case p.fund > 0 && p.accounts == 0:
		return errors.New("--fund needs --accounts")
	case len(p.scopes) > 0 && !p.credential:
		return errors.New("--scopes needs a credential")
	}
	return nil
}

// makeMissing makes what the plan asks for and the database lacks.
func (o operator) makeMissing(ctx context.Context, p plan) (s seeded, err error) {
	db, err := o.open(ctx)
	if err != nil {
		return s, err
	}
	defer db.Close()

	// Two seeds at once would both find an account missing. The lock goes with the connection.
	lock, err := db.Acquire(ctx)
	if err != nil {
		return s, fmt.Errorf("wait for another seed: %w", err)
	}
	defer lock.Release()

	if _, err := lock.Exec(ctx, `SELECT pg_advisory_lock(hashtextextended('oncepay seed', 0))`); err != nil {
		return s, fmt.Errorf("wait for another seed: %w", err)
	}

	if err := s.findOrCreateClient(ctx, db, p); err != nil {
		return s, err
	}
	if err := s.openAccounts(ctx, db, p); err != nil {
		return s, err
	}
	// Last, so that no later failure loses the token.
	return s, s.createCredential(ctx, db, p)
}

func (s *seeded) findOrCreateClient(ctx context.Context, db *pgxpool.Pool, p plan) error {
	// One transaction: no tenant without its client is left behind.
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) (err error) {
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

func (s *seeded) createCredential(ctx context.Context, db *pgxpool.Pool, p plan) error {
	if !p.credential {
		return nil
	}
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		token, err := credentials.Create(ctx, tx, s.ClientID, p.scopes)
		s.CredentialID, s.Token, s.Scopes = token.ID(), token.Reveal(), p.scopes
		return err
	})
}

func (s *seeded) print(w io.Writer, p plan) {
	program.Row(w, "tenant", s.TenantID, p.tenant)
	program.Row(w, "client", s.ClientID, p.client)

	if a := s.SystemAccount; a != nil {
		program.Row(w, "system account", a.ID, money(a.BalanceMinor, a.Currency))
	}
	if a := s.Clearing; a != nil {
		program.Row(w, "clearing account", a.ID, money(a.BalanceMinor, a.Currency))
	}
	for _, a := range s.Accounts {
		program.Row(w, "account", a.ID, money(a.BalanceMinor, a.Currency), a.Name)
	}

	if s.Token != "" {
		program.Row(w, "credential", s.CredentialID, strings.Join(s.Scopes, ","))
		fmt.Fprintf(w, "\nThe token, shown this once:\n%s\n", s.Token)
	}
}
