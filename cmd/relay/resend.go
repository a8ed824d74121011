package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/relay"
)

const aboutResend = `Sends events to Kafka again that were sent before, for the day on which Kafka has lost some: see "Kafka
has lost events" in docs/operating.md. Without --send it only counts them.

It may run beside the relays. It reads what the outbox still holds, and leaves to the relay what that
has not sent. Dead letters that wait for a decision, and what is behind them, are not sent, nor are
events that were skipped. Consumers recognise what they have by its id (ce_id).

A range of time begins up to a minute early and ends up to a minute late: events are dated when their
transaction begins, and in order by their id.

The variables are the relay's.`

// resend is a command line of relay resend.
type resend struct {
	ends      relay.Ends
	topic     string
	aggregate string
	rate      int
	send      bool
}

func resendCommand(getenv func(string) string) *cobra.Command {
	c := &cobra.Command{
		Use:   "resend",
		Short: "Send events again that Kafka has lost; without --send, count them",
		Long:  aboutResend,
		Example: "  relay resend --from-time 2026-03-01T12:00:00Z\n" +
			"  relay resend --from-time 2026-03-01T12:00:00Z --rate 5000 --send\n" +
			"  relay resend --from-id 1234567 --until-id 2345678 --topic payments --send",
	}
	program.JSON(c)

	var r resend
	flags := c.Flags()
	program.Flag(c, &r.ends.FromID, "from-id", "ID", "begin with this id of outbox_events", parseEventID)
	program.Flag(c, &r.ends.FromTime, "from-time", "TIME",
		"begin with the events of this day or time", parseTime)
	flags.BoolVar(&r.ends.FromOldest, "from-oldest", false,
		"begin with the oldest event that is kept, whatever was before it")
	program.Flag(c, &r.ends.UntilID, "until-id", "ID", "end with this id", parseEventID)
	program.Flag(c, &r.ends.UntilTime, "until", "TIME", "end before this day or time", parseTime)
	program.Flag(c, &r.topic, "topic", "TOPIC", "only this one: "+strings.Join(topics, ", "), parseTopic)
	flags.StringVar(&r.aggregate, "aggregate", "", "only the events of this aggregate, such as a payment")
	r.rate = 1000
	program.Flag(c, &r.rate, "rate", "N", "at most so many events a second (default 1000)", parseRate)
	flags.BoolVar(&r.send, "send", false, "send them")

	c.RunE = func(c *cobra.Command, _ []string) error {
		from := 0
		for _, flag := range []string{"from-id", "from-time", "from-oldest"} {
			if flags.Changed(flag) {
				from++
			}
		}
		if from != 1 {
			return errors.New(
				"give one of --from-id, --from-time and --from-oldest (relay resend -h explains it)")
		}
		return r.run(c, getenv)
	}
	return c
}

func (r resend) run(c *cobra.Command, getenv func(string) string) error {
	cfg, err := config.LoadRelay(getenv)
	if err != nil {
		return err
	}
	postgres.WarnPlainText(c.Context(), slog.Default(), "DATABASE_URL", cfg.DatabaseURL)

	const connections = 2
	db, err := postgres.Open(c.Context(), cfg.DatabaseURL, "relay resend", connections,
		slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer db.Close()

	span, err := r.on(db, cfg).Span(c.Context(), r.ends)
	var dropped *relay.NotKeptError
	if errors.As(err, &dropped) {
		return fmt.Errorf("%w; --from-oldest sends what is left", err)
	}
	if err != nil {
		return err
	}

	plan := resendReport{resend: r, span: span, cfg: cfg}
	progress := newProgress(c.ErrOrStderr())
	defer progress.end()
	if !r.send {
		plan.tally, err = r.on(db, cfg).Count(c.Context(), span, func(t relay.Tally, id int64) {
			progress.show("counted %d events up to id %d of %d", t.Events(), id, span.UntilID)
		})
		if err != nil {
			return err
		}
		progress.end()
		return program.Show(c, plan.json(), plan.print)
	}

	begun := time.Now()
	plan.tally, err = r.sendAll(c.Context(), db, cfg, span, progress)
	if err != nil {
		return err
	}
	progress.end()
	plan.took = time.Since(begun)
	return program.Show(c, plan.json(), plan.print)
}

func (r resend) on(db *pgxpool.Pool, cfg config.Relay) relay.Resend {
	return relay.Resend{DB: db, Relay: cfg.Name, Topic: r.topic, Aggregate: r.aggregate}
}

// sendAll sends the events of a span. Its error has the command line that goes on.
func (r resend) sendAll(
	ctx context.Context, db *pgxpool.Pool, cfg config.Relay, span relay.Span, progress *progress,
) (relay.Tally, error) {
	producer, err := newProducer(cfg)
	if err != nil {
		return relay.Tally{}, err
	}

	opening, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	kafka, err := producer.OpenResender(opening)
	if err != nil {
		return relay.Tally{}, err
	}
	defer kafka.Close()

	sent, next, err := r.on(db, cfg).Send(ctx, span, r.rate, kafka.Send,
		func(t relay.Tally, id int64) {
			progress.show("sent %d events up to id %d of %d", t.Events(), id, span.UntilID)
		})
	progress.end()
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if err != nil {
		return sent, fmt.Errorf("%w; to go on: %s", err, r.from(next, span.UntilID))
	}
	return sent, nil
}

// openTimeout is for the first answer of a broker.
const openTimeout = 10 * time.Second

// from returns the command line that goes on with an id.
func (r resend) from(id, until int64) string {
	line := fmt.Sprintf("relay resend --from-id %d --until-id %d", id, until)
	if r.topic != "" {
		line += " --topic " + r.topic
	}
	if r.aggregate != "" {
		line += " --aggregate " + strconv.Quote(r.aggregate)
	}
	return fmt.Sprintf("%s --rate %d --send", line, r.rate)
}

// progress writes how far a command is: each second over the same line of a terminal, every ten
// seconds where lines are kept.
type progress struct {
	to       io.Writer
	terminal bool
	every    time.Duration
	shown    time.Time
	open     bool // the terminal's line has no end yet
}

func newProgress(to io.Writer) *progress {
	p := &progress{to: to, every: 10 * time.Second, shown: time.Now()}
	if f, is := to.(*os.File); is {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	if p.terminal {
		p.every = time.Second
	}
	return p
}

func (p *progress) show(format string, args ...any) {
	if time.Since(p.shown) < p.every {
		return
	}
	p.shown = time.Now()

	text := fmt.Sprintf(format, args...)
	if p.terminal {
		fmt.Fprintf(p.to, "\r\x1b[K%s", text)
		p.open = true
		return
	}
	fmt.Fprintln(p.to, text)
}

func (p *progress) end() {
	if p.open {
		fmt.Fprintln(p.to)
	}
	p.open = false
}
