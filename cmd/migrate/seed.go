package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/migrations"
)

const seedUsage = `Usage: migrate seed -tenant name -client name [flags]

Makes what is missing of: the tenant, the client, the system account of the currency, and customer accounts named
"seed 1", "seed 2" and so on, each funded by a payment from the system account. A new credential is made each time; its
token is shown this once and stored nowhere. Amounts are in minor units: 100000 is 1000.00 USD.

Examples:
  migrate seed -tenant demo -client shop
  migrate seed -tenant demo -client shop -scopes accounts:fund -currency USD -accounts 2 -fund 100000 -json
  migrate seed -tenant demo -client shop -currency EUR -accounts 10 -credential=false

Flags:
`

// plan is what the flags of seed ask for.
type plan struct {
	tenant, client string
	credential     bool
	scopes         []string
	currency       string // empty: no accounts
	accounts       int
	fund           int64
	asJSON         bool
}

// seeded is what there is afterwards, and the form of -json.
type seeded struct {
	TenantID      uuid.UUID          `json:"tenant_id"`
	ClientID      uuid.UUID          `json:"client_id"`
	CredentialID  string             `json:"credential_id,omitempty"`
	Token         string             `json:"token,omitempty"` // revealed, on purpose
	Scopes        []string           `json:"scopes,omitempty"`
	SystemAccount *payments.Account  `json:"system_account,omitempty"`
	Accounts      []payments.Account `json:"accounts"`
}

func seed(ctx context.Context, args []string, getenv func(string) string, stdout io.Writer) error {
	p, done, err := parsePlan(args, stdout)
	if done || err != nil {
		return err
	}
	conn, err := connect(ctx, getenv)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := migrations.Check(ctx, conn); err != nil {
		return err
	}
	// Two at once would both find an account missing. The lock goes with the connection.
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
	// Last, so that no token is lost to a failure after it.
	if err := s.createCredential(ctx, conn, p); err != nil {
		return err
	}
	if p.asJSON {
		encoder := json.NewEncoder(stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(s)
	}
	return s.print(stdout, p)
}

// parsePlan reads and checks the flags before anything is touched. All problems are reported together.
func parsePlan(args []string, stdout io.Writer) (p plan, done bool, err error) {
	var scopes string
	flags := flag.NewFlagSet("seed", flag.ContinueOnError)
	flags.StringVar(&p.tenant, "tenant", "", "`name` of the tenant, 1 to 100 characters")
	flags.StringVar(&p.client, "client", "", "`name` of the client, 1 to 100 characters")
	flags.BoolVar(&p.credential, "credential", true, "make a credential")
	flags.StringVar(&scopes, "scopes", "", "`scopes` of the credential, separated by commas; there is "+credentials.ScopeFund)
	flags.StringVar(&p.currency, "currency", "", "ISO 4217 `code` of the accounts")
	flags.IntVar(&p.accounts, "accounts", 0, "`number` of customer accounts there should be, up to 10000")
	flags.Int64Var(&p.fund, "fund", 0, "`amount` in minor units that each account without a payment gets")
	flags.BoolVar(&p.asJSON, "json", false, "write JSON")
	if done, err := parse(flags, args, seedUsage, stdout); done || err != nil {
		return plan{}, done, err
	}
	problems := []error{noArguments(flags)}
	check := func(ok bool, problem string) {
		if !ok {
			problems = append(problems, errors.New(problem+" (migrate seed -h shows the flags)"))
		}
	}
	check(isName(p.tenant), "-tenant must be a name of 1 to 100 characters")
	check(isName(p.client), "-client must be a name of 1 to 100 characters")
	check(p.currency == "" || payments.KnownCurrency(p.currency), "-currency must be an ISO 4217 code in capitals, such as USD")
	check(p.accounts >= 0 && p.accounts <= 10_000, "-accounts must be from 0 to 10000")
	check(p.accounts == 0 || p.currency != "", "-accounts needs -currency")
	check(p.fund >= 0 && p.fund <= payments.MaxAmount, fmt.Sprintf("-fund must be from 0 to %d", int64(payments.MaxAmount)))
	check(p.fund == 0 || p.accounts > 0, "-fund needs -accounts")
	check(scopes == "" || p.credential, "-scopes needs a credential")
	if scopes != "" {
		p.scopes = strings.Split(scopes, ",")
		problems = append(problems, credentials.CheckScopes(p.scopes))
	}
	return p, false, errors.Join(problems...)
}

func isName(s string) bool {
	n := utf8.RuneCountInString(s)
	return utf8.ValidString(s) && n >= 1 && n <= 100
}

func (s *seeded) findOrCreateClient(ctx context.Context, conn *pgx.Conn, p plan) error {
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

func (s *seeded) print(stdout io.Writer, p plan) error {
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "tenant\t%s\t%s\n", s.TenantID, p.tenant)
	fmt.Fprintf(w, "client\t%s\t%s\n", s.ClientID, p.client)
	if a := s.SystemAccount; a != nil {
		fmt.Fprintf(w, "system account\t%s\t%d %s\n", a.ID, a.BalanceMinor, a.Currency)
	}
	for _, a := range s.Accounts {
		fmt.Fprintf(w, "account\t%s\t%d %s\t%s\n", a.ID, a.BalanceMinor, a.Currency, a.Name)
	}
	if s.Token != "" {
		fmt.Fprintf(w, "credential\t%s\t%s\n", s.CredentialID, strings.Join(s.Scopes, ","))
	}
	if err := w.Flush(); err != nil || s.Token == "" {
		return err
	}
	_, err := fmt.Fprintf(stdout, "\nThe token, shown this once:\n%s\n", s.Token)
	return err
}
