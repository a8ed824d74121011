package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/program"
)

// statement is an account as seen by consumer and ledger.
type statement struct {
	Account payments.Account `json:"account"`
	Days    []day            `json:"days"`
	Agrees  bool             `json:"agrees"` // on every day, and the entries add up to the balance
}

// day is one UTC day of an account.
type day struct {
	Day          string `json:"day"`
	Statement    sums   `json:"statement"` // what the consumer counted
	Ledger       sums   `json:"ledger"`
	BalanceMinor int64  `json:"balance_minor"` // sum of the ledger's entries to the end of the day
	Agrees       bool   `json:"agrees"`
}

type sums struct {
	Payments     int64 `json:"payments"`
	DebitsMinor  int64 `json:"debits_minor"`
	CreditsMinor int64 `json:"credits_minor"`
}

func (o operator) statement() *cobra.Command {
	c := &cobra.Command{
		Use:   "statement ACCOUNT",
		Short: "Show an account by day: what the consumer counted beside what the ledger holds",
		Long: `Shows an account by UTC day: how many payments the consumer has counted and what they took and
brought, beside the same sums of the ledger itself, and the ledger's balance at the end of the day.
Where they differ it says so: the consumer counts events, so it lags behind a little. If it still
differs when nothing is on its way, something is wrong.

Exit codes: 0 here it is, whether they agree or not, since the consumer may lag: a script reads
"agrees" in --json; 1 it could not be read.`,
		Example: "  oncepay statement 0198a6de-5c1f-7000-8000-0123456789ab\n" +
			"  oncepay statement 0198a6de-5c1f-7000-8000-0123456789ab --json",
		GroupID: asOperator,
	}

	var id uuid.UUID
	program.Argument(c, &id, parseID)

	c.RunE = runs(o, looks, func(ctx context.Context, tx pgx.Tx) (statement, error) {
		return readStatement(ctx, tx, id)
	}, printStatement)
	return c
}

const readAccount = `
SELECT id, kind, currency, name, balance_minor, held_minor, created_at FROM accounts WHERE id = $1`

// readDays uses the primary keys of both tables. The balance is a sum, not that of the day's last
// entry: around midnight a payment of the old day may be entered after one of the new.
const readDays = `
WITH ledger AS (
  SELECT (created_at AT TIME ZONE 'utc')::date AS day, count(*) AS payments,
         coalesce(-sum(amount_minor) FILTER (WHERE amount_minor < 0), 0) AS debits,
         coalesce(sum(amount_minor) FILTER (WHERE amount_minor > 0), 0) AS credits
  FROM ledger_entries WHERE account_id = $1 GROUP BY 1
), statement AS (
  SELECT day, payment_count, debits_minor, credits_minor FROM statements WHERE account_id = $1
)
SELECT day, coalesce(s.payment_count, 0), coalesce(s.debits_minor, 0), coalesce(s.credits_minor, 0),
       coalesce(l.payments, 0), coalesce(l.debits, 0)::bigint, coalesce(l.credits, 0)::bigint,
       (coalesce(sum(l.credits - l.debits) OVER (ORDER BY day), 0))::bigint
FROM ledger l FULL JOIN statement s USING (day) ORDER BY day`

func readStatement(ctx context.Context, tx pgx.Tx, id uuid.UUID) (statement, error) {
	s := statement{Agrees: true}
	a := &s.Account
	err := tx.QueryRow(ctx, readAccount, id).Scan(
		&a.ID, &a.Kind, &a.Currency, &a.Name, &a.BalanceMinor, &a.HeldMinor, &a.CreatedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return statement{}, fmt.Errorf("there is no account %s", id)
	}
	if err != nil {
		return statement{}, fmt.Errorf("read account: %w", err)
	}

	// Days that the consumer counted and the ledger lacks are among them, and the reverse.
	rows, err := tx.Query(ctx, readDays, id)
	if err != nil {
		return statement{}, fmt.Errorf("read statement: %w", err)
	}
	s.Days, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (d day, err error) {
		var at time.Time
		err = row.Scan(&at, &d.Statement.Payments, &d.Statement.DebitsMinor, &d.Statement.CreditsMinor,
			&d.Ledger.Payments, &d.Ledger.DebitsMinor, &d.Ledger.CreditsMinor, &d.BalanceMinor)
		d.Day, d.Agrees = at.Format(time.DateOnly), d.Statement == d.Ledger
		return d, err
	})
	if err != nil {
		return statement{}, fmt.Errorf("read statement: %w", err)
	}

	// The account agrees when every day does and the entries add up to its balance.
	s.Agrees = s.entered() == a.BalanceMinor
	for _, d := range s.Days {
		s.Agrees = s.Agrees && d.Agrees
	}
	return s, nil
}

// entered returns the sum of the account's entries.
func (s statement) entered() int64 {
	if len(s.Days) == 0 {
		return 0
	}
	return s.Days[len(s.Days)-1].BalanceMinor
}

func printStatement(w io.Writer, s statement) {
	a := s.Account
	program.Row(w, "account", a.ID, a.Kind, a.Name)
	program.Row(w, "balance", money(a.BalanceMinor, a.Currency))

	// Without a payment there may still be a balance, which is wrong then.
	if len(s.Days) == 0 {
		program.Row(w, "no payment yet")
	} else {
		s.printDays(w)
	}
	if entered := s.entered(); entered != a.BalanceMinor {
		fmt.Fprintf(w, "\nTHE BOOKS ARE WRONG: the balance is %d, the entries add up to %d.\n",
			a.BalanceMinor, entered)
	}
}

func (s statement) printDays(w io.Writer) {
	fmt.Fprintln(w)
	program.Row(w, "DAY", "CONSUMER", "DEBITS", "CREDITS",
		"LEDGER", "DEBITS", "CREDITS", "BALANCE", "")

	differ := 0
	for _, d := range s.Days {
		note := ""
		if !d.Agrees {
			note = "differs"
			differ++
		}
		program.Row(w, d.Day,
			d.Statement.Payments, d.Statement.DebitsMinor, d.Statement.CreditsMinor,
			d.Ledger.Payments, d.Ledger.DebitsMinor, d.Ledger.CreditsMinor, d.BalanceMinor, note)
	}

	// Say it either way: silence could mean that nothing was compared.
	if differ == 0 {
		fmt.Fprintln(w, "\nConsumer and ledger agree on every day.")
		return
	}
	fmt.Fprintf(w, "\nConsumer and ledger differ on %d of %d days: "+
		"the consumer lags, see oncepay outbox, or it counted wrong.\n", differ, len(s.Days))
}
