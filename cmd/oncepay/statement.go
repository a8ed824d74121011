package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
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
	Begins  *beginning       `json:"begins"` // null: nothing was archived
	Days    []day            `json:"days"`   // the oldest first
	Earlier string           `json:"earlier_until,omitempty"`
	Agrees  bool             `json:"agrees"` // on every day, and the entries add up to the balance

	entered int64 // what the entries add up to behind the last of the days
	newest  bool  // there are no later days
}

// beginning is where the history in the database begins: what was before is in the archive.
type beginning struct {
	Day          string `json:"day"`
	Entries      int64  `json:"archived_entries"`
	BalanceMinor int64  `json:"balance_minor"`

	at time.Time
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

It shows --days days, the newest or those before --until, and how to go on to earlier ones. Days
that oncepay archive has taken out are not there: it says where the history begins.

Exit codes: 0 here it is, whether they agree or not, since the consumer may lag: a script reads
"agrees" in --json; 1 it could not be read.`,
		Example: "  oncepay statement 0198a6de-5c1f-7000-8000-0123456789ab\n" +
			"  oncepay statement 0198a6de-5c1f-7000-8000-0123456789ab --until 2026-03-01 --days 7 --json",
		GroupID: asOperator,
	}

	var id uuid.UUID
	var until time.Time
	days := 31
	program.Argument(c, &id, parseID)
	program.Flag(c, &until, "until", "DAY", "days before this one, in UTC; default the newest", parseDay)
	program.Flag(c, &days, "days", "NUMBER", "how many days at most, 1 to 366", parseDays)

	c.RunE = runs(o, looks, func(ctx context.Context, tx pgx.Tx) (statement, error) {
		return readStatement(ctx, tx, id, until, days)
	}, printStatement)
	return c
}

func parseDay(s string) (time.Time, error) {
	t, err := time.Parse(time.DateOnly, s)
	if err != nil {
		return t, errors.New("it must be a day such as 2026-03-01")
	}
	return t, nil
}

func parseDays(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 366 {
		return 0, errors.New("it must be a whole number from 1 to 366")
	}
	return n, nil
}

const readAccount = `
SELECT id, kind, currency, name, balance_minor, held_minor, created_at FROM accounts WHERE id = $1`

const readBeginning = `
SELECT (books_begin() AT TIME ZONE 'utc')::date, entry_no, balance_minor
FROM ledger_openings WHERE account_id = $1`

// readDays uses the primary keys of both tables. The balance is a sum, not that of the day's last
// entry: around midnight a payment of the old day may be entered after one of the new. What is no
// day of ours has none: it counts for the balance before, or not at all.
const readDays = `
WITH ledger AS (
  SELECT CASE WHEN created_at >= $5 THEN (created_at AT TIME ZONE 'utc')::date END AS day,
         count(*) AS payments,
         coalesce(-sum(amount_minor) FILTER (WHERE amount_minor < 0), 0) AS debits,
         coalesce(sum(amount_minor) FILTER (WHERE amount_minor > 0), 0) AS credits
  FROM ledger_entries
  WHERE account_id = $1 AND entry_no > $2 AND entry_no <= $3 AND created_at < $6 GROUP BY 1
), statement AS (
  SELECT day, payment_count, debits_minor, credits_minor FROM statements
  WHERE account_id = $1 AND day >= ($5 AT TIME ZONE 'utc')::date AND day < ($6 AT TIME ZONE 'utc')::date
)
SELECT day, coalesce(s.payment_count, 0), coalesce(s.debits_minor, 0), coalesce(s.credits_minor, 0),
       coalesce(l.payments, 0), coalesce(l.debits, 0)::bigint, coalesce(l.credits, 0)::bigint,
       ($4 + coalesce(sum(l.credits - l.debits) OVER (ORDER BY day NULLS FIRST), 0))::bigint
FROM ledger l FULL JOIN statement s USING (day) ORDER BY day NULLS FIRST`

func readStatement(
	ctx context.Context, tx pgx.Tx, id uuid.UUID, until time.Time, days int,
) (statement, error) {
	s := statement{Agrees: true, Days: []day{}}
	a := &s.Account
	err := tx.QueryRow(ctx, readAccount, id).Scan(
		&a.ID, &a.Kind, &a.Currency, &a.Name, &a.BalanceMinor, &a.HeldMinor, &a.CreatedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return statement{}, fmt.Errorf("there is no account %s", id)
	}
	if err != nil {
		return statement{}, fmt.Errorf("read account: %w", err)
	}
	if s.Begins, err = readBegins(ctx, tx, id); err != nil {
		return statement{}, err
	}

	shown, err := findSpan(ctx, tx, id, until, days)
	if err != nil {
		return statement{}, err
	}
	if s.Begins != nil && shown.From.Before(s.Begins.at) {
		shown.From = s.Begins.at // the consumer still has the days before
	}
	s.newest, s.entered = shown.newest, shown.before
	if err := s.readDays(ctx, tx, shown); err != nil {
		return statement{}, fmt.Errorf("read statement: %w", err)
	}

	// The account agrees when every day does and the entries add up to its balance.
	s.Agrees = !s.newest || s.entered == a.BalanceMinor
	for _, d := range s.Days {
		s.Agrees = s.Agrees && d.Agrees
	}
	return s, nil
}

func readBegins(ctx context.Context, tx pgx.Tx, id uuid.UUID) (*beginning, error) {
	var b beginning
	err := tx.QueryRow(ctx, readBeginning, id).Scan(&b.at, &b.Entries, &b.BalanceMinor)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read where the history begins: %w", err)
	}

	b.Day = b.at.Format(time.DateOnly)
	return &b, nil
}

const readEarlier = `
SELECT EXISTS (SELECT FROM ledger_entries WHERE account_id = $1 AND entry_no <= $2
                 AND entry_no > coalesce((SELECT entry_no FROM ledger_openings WHERE account_id = $1), 0))
    OR EXISTS (SELECT FROM statements WHERE account_id = $1 AND day < $3::date
                 AND day >= (books_begin() AT TIME ZONE 'utc')::date)`

// readDays adds the days of shown. Days that the consumer counted and the ledger lacks are among them,
// and the reverse.
func (s *statement) readDays(ctx context.Context, tx pgx.Tx, shown span) error {
	rows, err := tx.Query(ctx, readDays, s.Account.ID, shown.after, shown.last, shown.before,
		shown.From, shown.Until)
	if err != nil {
		return err
	}

	var at *time.Time
	var d day
	earlier := false
	_, err = pgx.ForEachRow(rows, []any{&at,
		&d.Statement.Payments, &d.Statement.DebitsMinor, &d.Statement.CreditsMinor,
		&d.Ledger.Payments, &d.Ledger.DebitsMinor, &d.Ledger.CreditsMinor, &d.BalanceMinor,
	}, func() error {
		s.entered = d.BalanceMinor
		if at == nil { // of the minute before
			earlier = true
			return nil
		}
		d.Day, d.Agrees = at.Format(time.DateOnly), d.Statement == d.Ledger
		s.Days = append(s.Days, d)
		return nil
	})
	if err != nil {
		return err
	}

	switch {
	case s.Begins != nil && !shown.From.After(s.Begins.at):
		earlier = false
	case !earlier:
		err = tx.QueryRow(ctx, readEarlier, s.Account.ID, shown.after, shown.From).Scan(&earlier)
	}
	if earlier {
		s.Earlier = shown.From.Format(time.DateOnly)
	}
	return err
}

func printStatement(w io.Writer, s statement) {
	a := s.Account
	program.Row(w, "account", a.ID, a.Kind, a.Name)
	program.Row(w, "balance", money(a.BalanceMinor, a.Currency))

	if b := s.Begins; b != nil {
		program.Row(w, "begins", b.Day, fmt.Sprintf("with %s; %d entries before are in the archive",
			money(b.BalanceMinor, a.Currency), b.Entries))
	}

	// Without a payment there may still be a balance, which is wrong then.
	switch {
	case len(s.Days) > 0:
		s.printDays(w)
	case s.newest && s.Earlier == "" && s.Begins == nil:
		program.Row(w, "no payment yet")
	default:
		program.Row(w, "no payment on these days")
	}
	if s.Earlier != "" {
		fmt.Fprintf(w, "\nEarlier days: oncepay statement %s --until %s\n", a.ID, s.Earlier)
	}
	if s.newest && s.entered != a.BalanceMinor {
		fmt.Fprintf(w, "\nTHE BOOKS ARE WRONG: the balance is %d, the entries add up to %d.\n",
			a.BalanceMinor, s.entered)
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
