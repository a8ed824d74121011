package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
)

// DeadLetters is the command dead-letters of a program: list, show, retry and skip. T is one, as
// JSON shows it.
type DeadLetters[T any] struct {
	Program   string // its name
	About     string // what dead letters are here, such as "events that Kafka refused"
	Variables string // a sentence on those that are used
	Retried   string // what happens to one that is retried, such as "is sent again"
	Subject   string // the title of the column of Letter.Subject
	Reason    string // an example of one, for skip

	None      string // printed by list when there are none at all
	NoneWaits string // printed by list when none waits for a decision

	// Open opens the configured database. name is whose dead letters are meant.
	Open func(ctx context.Context, getenv func(string) string) (
		db *pgxpool.Pool, name string, err error)
	// What the package that keeps them does, with the database and the name.
	List  func(ctx context.Context, db *pgxpool.Pool, name string, all bool) ([]T, error)
	Find  func(ctx context.Context, db *pgxpool.Pool, name string, id int64) (T, error)
	Retry func(ctx context.Context, db *pgxpool.Pool, name string, id int64) error
	Skip  func(ctx context.Context, db *pgxpool.Pool, name string, id int64, reason string) error

	Letter   func(T) Letter // for text
	NotFound error          // of Find
	Unknown  string         // what it says to an operator
}

// Letter is a dead letter as a line of text shows it.
type Letter struct {
	ID      int64
	State   string // parked and retry wait
	Type    string // of the event
	Subject string // its aggregate
	Reason  string // why it is dead
	Waiting int64  // events of its aggregate that wait, itself included
	Payload []byte // of one that was found
}

// others returns how many other events of its aggregate wait, if it waits itself.
func (l Letter) others() int64 {
	if l.State != "parked" && l.State != "retry" {
		return 0
	}
	return max(l.Waiting-1, 0)
}

func (l Letter) name() string { return fmt.Sprintf("event %d (%s of %s)", l.ID, l.Type, l.Subject) }

// Command returns the command, for Program.Commands.
func (d DeadLetters[T]) Command(getenv func(string) string) *cobra.Command {
	c := &cobra.Command{
		Use:   "dead-letters",
		Short: "Show and decide on " + d.About,
		Long: "Shows " + d.About + ", and decides on them. Their aggregates are\n" +
			"parked meanwhile: later events of the same aggregate wait, all others flow.\n\n" +
			d.Variables,
		Example: d.example("list") + "\n" + d.example("retry 1234"),
	}
	JSON(c)

	c.AddCommand(d.list(getenv), d.show(getenv), d.retry(getenv), d.skip(getenv))
	return c
}

func (d DeadLetters[T]) example(args string) string {
	return "  " + d.Program + " dead-letters " + args
}

// on returns what runs a command, on one letter or, without an ID in its Use, on all.
func (d DeadLetters[T]) on(
	getenv func(string) string,
	do func(c *cobra.Command, db *pgxpool.Pool, name string, id int64) error,
) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		var id int64
		if len(args) > 0 {
			var err error
			if id, err = strconv.ParseInt(args[0], 10, 64); err != nil || id < 1 {
				return fmt.Errorf(
					"the ID must be a number shown by %s dead-letters list", d.Program)
			}
		}

		// The command line is right: only now is anything opened.
		db, name, err := d.Open(c.Context(), getenv)
		if err != nil {
			return err
		}
		defer db.Close()

		return do(c, db, name, id)
	}
}

// unknown says in the operator's words that there is no such letter.
func (d DeadLetters[T]) unknown(err error) error {
	if errors.Is(err, d.NotFound) {
		return errors.New(d.Unknown)
	}
	return err
}

func (d DeadLetters[T]) list(getenv func(string) string) *cobra.Command {
	list := &cobra.Command{
		Use:   "list",
		Short: "Show those that wait for a decision, one line each",
		Long: "Shows those that wait for a decision, one line each. OTHERS counts the other events " +
			"of the\naggregate that wait, too.\n\n" + d.Variables,
		Example: d.example("list") + "\n" + d.example("list --all --json"),
	}

	all := list.Flags().Bool("all", false, "show those of the past, too")
	list.RunE = d.on(getenv, func(c *cobra.Command, db *pgxpool.Pool, name string, _ int64) error {
		found, err := d.List(c.Context(), db, name, *all)
		if err != nil {
			return err
		}

		return Show(c, found, func(w io.Writer) { d.print(w, found, *all) })
	})
	return list
}

func (d DeadLetters[T]) print(w io.Writer, found []T, all bool) {
	switch {
	case len(found) == 0 && all:
		Row(w, d.None)
	case len(found) == 0:
		Row(w, d.NoneWaits)
	default:
		Row(w, "ID", "STATE", "EVENT", d.Subject, "OTHERS", "REASON")
	}

	for _, f := range found {
		l := d.Letter(f)
		Row(w, l.ID, l.State, l.Type, l.Subject, l.others(), l.Reason)
	}
}

func (d DeadLetters[T]) show(getenv func(string) string) *cobra.Command {
	show := &cobra.Command{
		Use:     "show ID",
		Short:   "Show what is known of one, as JSON, but for its payload",
		Long:    "Shows what is known of one, as JSON, but for its payload.\n\n" + d.Variables,
		Example: d.example("show 1234") + "\n" + d.example("show --payload 1234 > payload"),
	}

	payload := show.Flags().Bool("payload", false,
		"write its payload instead, byte for byte; it may be confidential")
	show.RunE = d.on(getenv, func(c *cobra.Command, db *pgxpool.Pool, name string, id int64) error {
		letter, err := d.Find(c.Context(), db, name, id)
		if err != nil {
			return d.unknown(err)
		}

		// Bytes as they are, for a file: no newline, nothing replaced.
		if *payload {
			_, err := c.OutOrStdout().Write(d.Letter(letter).Payload)
			return err
		}

		return WriteJSON(c.OutOrStdout(), letter)
	})
	return show
}

func (d DeadLetters[T]) retry(getenv func(string) string) *cobra.Command {
	retry := &cobra.Command{
		Use:   "retry ID",
		Short: "Release one: it " + d.Retried + ", then what waits behind it",
		Long: "Releases one: it " + d.Retried + ", then what waits behind it. If that fails, it " +
			"waits\nfor a decision again.\n\n" + d.Variables,
		Example: d.example("retry 1234"),
	}

	retry.RunE = d.on(getenv, func(c *cobra.Command, db *pgxpool.Pool, name string, id int64) error {
		// Read first: a moment after it is released, all that waits may be gone.
		letter, err := d.Find(c.Context(), db, name, id)
		if err != nil {
			return d.unknown(err)
		}

		l := d.Letter(letter)
		if err := d.Retry(c.Context(), db, name, id); err != nil {
			return fmt.Errorf("%w (its state was %s)", err, l.State)
		}

		return Show(c, decision{id, "retry"}, func(w io.Writer) {
			Row(w, fmt.Sprintf("released %s: it %s, within a second if a %s runs",
				l.name(), d.Retried, d.Program))
			Row(w, fmt.Sprintf("other events of its aggregate that wait: %d", l.others()))
			Row(w, "what came of it:"+d.example(fmt.Sprintf("show %d", id))[1:])
		})
	})
	return retry
}

func (d DeadLetters[T]) skip(getenv func(string) string) *cobra.Command {
	skip := &cobra.Command{
		Use:   "skip ID",
		Short: "Give one up for good, and release what waits behind it",
		Long: "Gives one up for good, and releases what waits behind it. This cannot be undone.\n\n" +
			d.Variables,
		Example: d.example(`skip --reason "` + d.Reason + `" 1234`),
	}

	// Required: consumers miss the event for good, and later it must be known why.
	var reason string
	Flag(skip, &reason, "reason", "WHY", "it is kept with the event", parseReason)
	Require(skip, "reason")

	skip.RunE = d.on(getenv, func(c *cobra.Command, db *pgxpool.Pool, name string, id int64) error {
		letter, err := d.Find(c.Context(), db, name, id)
		if err != nil {
			return d.unknown(err)
		}

		// Another operator may have decided in between.
		l := d.Letter(letter)
		if err := d.Skip(c.Context(), db, name, id, reason); err != nil {
			return fmt.Errorf("%w (its state was %s)", err, l.State)
		}

		return Show(c, decision{id, "skip"}, func(w io.Writer) {
			Row(w, fmt.Sprintf("gave up %s for good; the reason is kept with it", l.name()))
			Row(w, fmt.Sprintf("other events of its aggregate that waited: %d", l.others()))
		})
	})
	return skip
}

func parseReason(s string) (string, error) {
	if strings.TrimSpace(s) == "" {
		return "", errors.New("it is kept with the event, and must not be empty")
	}
	return s, nil
}

// decision is the JSON form of what retry and skip did.
type decision struct {
	ID       int64  `json:"id"`
	Decision string `json:"decision"`
}
