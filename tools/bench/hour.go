package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/tools/rig"
)

// hourSettings are those of a server that nobody has tuned, but for its memory: checkpoints and
// autovacuum come as they come. -postgres changes them.
var hourSettings = map[string]string{
	"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "shared_buffers": "1GB",
}

// hourBench is one run of hour.
type hourBench struct {
	*intakeBench
	broker testenv.Server
	topic  *topic
	looks  []look // one a minute
}

// hour measures the steady state from top to bottom: api and relay at a fixed rate, on a database
// that has a past.
func hour(ctx context.Context, o options, stdout io.Writer) (err error) {
	settings := maps.Clone(hourSettings)
	for _, s := range o.postgresSettings {
		name, value, _ := strings.Cut(s, "=")
		settings[name] = value
	}

	started, err := startWith(ctx, o, settings, stdout, "api", "oncepay", "relay")
	defer func() { err = errors.Join(err, started.stop()) }()
	if err != nil {
		return err
	}

	b := &hourBench{intakeBench: &intakeBench{bench: started}}
	if b.broker, err = rig.Broker(ctx, os.Getenv, true, b.Say); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		err = errors.Join(err, b.broker.Stop(ctx))
	}()
	b.machine = b.broker.Name + "; " + b.machine
	b.Say("%s", b.machine)

	if err := b.open(ctx); err != nil {
		return err
	}

	// An hour that went wrong is looked at all the same.
	err = b.measure(ctx)
	if len(b.looks) < 2 {
		return err
	}
	if err != nil {
		b.Say("the figures prove nothing: %v", err)
	}
	return errors.Join(err, b.report())
}

// open makes the past.
func (b *hourBench) open(ctx context.Context) (err error) {
	if b.shop, err = b.seed(ctx, tenant, 2); err != nil {
		return err
	}

	b.Say("storing %d payments of %d accounts; this takes minutes", b.stored, b.accounts)
	if err := rig.Execute(ctx, b.owner(template), past(b.stored, b.accounts)...); err != nil {
		return err
	}

	const customers = `SELECT array_agg(id) FROM accounts WHERE kind = 'customer'`
	ids, err := rig.Query[[]uuid.UUID](ctx, b.owner(template), customers)
	if err != nil {
		return err
	}

	one := b.shop.Accounts[:1:1]
	b.shop.Accounts = nil
	for _, id := range ids {
		one[0].ID = id
		b.shop.Accounts = append(b.shop.Accounts, one...)
	}
	return nil
}

// measure sends the load, and proves by the books and the topic that all of it happened.
func (b *hourBench) measure(ctx context.Context) (err error) {
	prefix := fmt.Sprintf("bench-%s.", uuid.NewString()[:8])
	if b.topic, err = makeTopic(ctx, strings.Split(b.broker.Address, ","), prefix); err != nil {
		return err
	}
	defer b.topic.remove(context.WithoutCancel(ctx))

	const fundings = `SELECT count(*) FROM outbox_events WHERE aggregate_type = 'payments'`
	funded, err := rig.Query[int](ctx, b.owner(template), fundings)
	if err != nil {
		return err
	}

	b.Say("counting the books; this takes minutes")
	return b.session(ctx, scenario{group: true}, template, func(s *session) error {
		relay, err := process.Start(ctx, b.dir, "relay", "KAFKA_BROKERS="+b.broker.Address,
			"TOPIC_PREFIX="+prefix, "DATABASE_URL="+b.postgres.URL("relay", template))
		if err != nil {
			return err
		}
		defer os.Remove(filepath.Join(b.dir, "relay.log"))
		defer relay.Stop()

		paid, err := b.pay(ctx, s, relay)
		if err != nil {
			return err
		}

		// Nothing was killed, so nothing was sent twice: the topic is as long as there are payments,
		// with those that funded the first accounts.
		paid += funded
		if _, err := b.topic.await(ctx, paid); err != nil {
			return err
		}
		ends, err := b.topic.ends(ctx)
		if err != nil {
			return err
		}
		sent := 0
		for _, end := range ends {
			sent += int(end)
		}
		if sent != paid {
			return fmt.Errorf("no result: %d payments, but %d records", paid, sent)
		}

		b.Say("%d payments and as many records; checking the books takes minutes", paid)
		return nil
	})
}

// pay sends the load and looks every minute.
func (b *hourBench) pay(ctx context.Context, s *session, relay *process.Process) (paid int, err error) {
	l, wrote := s.loadOf(stretch{name: "hour", open: true, warm: warm})

	var lookErr error
	w := &watch{hourBench: b, api: s.api, relay: relay}
	t, err := l.run(ctx, func(func()) { lookErr = w.run(ctx) })
	s.count(wrote, len(t.keys))
	for i := range min(len(t.minutes), len(b.looks)) {
		b.looks[i].latencies = t.minutes[i]
	}
	return len(t.keys), errors.Join(err, lookErr, t.err())
}

// report prints what a minute and what the whole cost, draws the plot, and ends with the JSON.
func (b *hourBench) report() error {
	fmt.Fprintf(b, "\n%s, after: %s\n", b.machine, loadAverage())
	fmt.Fprintf(b, "%d payments/s for %d minutes between %d accounts, %d payments stored %s\n",
		b.rate, b.minutes, b.accounts, b.stored, strings.Join(b.variables, " "))

	minutes := minutesOf(b.looks)
	showMinutes(b, minutes)
	showTables(b, b.looks[0], b.looks[len(b.looks)-1])

	if b.svg != "" {
		if err := os.WriteFile(b.svg, plot(minutes), 0o644); err != nil {
			return fmt.Errorf("draw the plot: %w", err)
		}
	}
	line, err := json.Marshal(minutes)
	if err != nil {
		return fmt.Errorf("write the figures: %w", err)
	}
	fmt.Fprintf(b, "\n%s\n", line)
	return nil
}
