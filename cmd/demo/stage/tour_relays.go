package stage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oncepay/oncepay/cmd/demo/local"
	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/statements"
)

// newestEvent returns the highest id of the outbox.
func (s *Stage) newestEvent(ctx context.Context) (id int64, err error) {
	err = s.db.QueryRow(ctx, `SELECT coalesce(max(id), 0) FROM outbox_events`).Scan(&id)
	if err != nil {
		return 0, fmt.Errorf("read the outbox: %w", err)
	}
	return id, nil
}

// How many events of the visitor's payments there are, and how many of them the consumer has.
const readEffects = `
SELECT count(*), count(i.event_id)
FROM outbox_events o
JOIN payments p ON p.id = o.aggregate_id::uuid AND p.client_id = $2
LEFT JOIN inbox_events i ON i.consumer = $3 AND i.event_id = o.event_id
WHERE o.id > $1 AND o.aggregate_type = 'payments'`

// awaitEffects waits until there are that many events of the visitor's payments, and the consumer has
// them all.
func (s *Stage) awaitEffects(ctx context.Context, after, least int64) (events int64, err error) {
	err = s.until(ctx, "the consumer has all events", func(ctx context.Context) (bool, error) {
		var had int64
		row := s.db.QueryRow(ctx, readEffects, after, s.Visitor.ClientID, statements.Consumer)
		err := row.Scan(&events, &had)
		return err == nil && events >= least && had == events, err
	})
	return events, err
}

// playKilledLeader has each payment by card tell two events, whose order can be seen.
func (s *Stage) playKilledLeader(ctx context.Context) (string, error) {
	return s.withoutLeader(ctx, func(leader *local.Program) error {
		_, err := s.killProgram(leader)
		return err
	}, func(context.Context, *local.Program) (string, error) { return "", nil })
}

// playFrozenLeader wakes the old leader when there is a new one.
func (s *Stage) playFrozenLeader(ctx context.Context) (string, error) {
	return s.withoutLeader(ctx, func(leader *local.Program) error {
		_, err := s.freeze(ctx, leader.Kind)
		return err
	}, func(ctx context.Context, woken *local.Program) (string, error) {
		if _, err := s.thaw(ctx, woken.Kind); err != nil {
			return "", err
		}
		err := s.until(ctx, woken.Name+" knows that it does not lead", func(ctx context.Context) (bool, error) {
			families, err := scraped(ctx, woken.Admin())
			if err != nil {
				return false, nil // it has just woken
			}
			leader := families["relay_leader"].GetMetric()
			return len(leader) == 1 && leader[0].GetGauge().GetValue() == 0, nil
		})
		return woken.Name + " woke up, was fenced off and stands by; ", err
	})
}

// withoutLeader strikes the leading relay, waits for the other one to lead, and proves that nothing was
// lost or reordered.
func (s *Stage) withoutLeader(
	ctx context.Context,
	strike func(*local.Program) error,
	after func(context.Context, *local.Program) (string, error),
) (string, error) {
	leader, err := s.find(ctx, "relay")
	if err != nil {
		return "", err
	}
	before, err := s.newestEvent(ctx)
	if err != nil {
		return "", err
	}
	tokens, err := s.token(ctx)
	if err != nil {
		return "", err
	}

	// Some events come before the strike, and some while no relay leads.
	if _, err := s.payMany(ctx, 10, "tok_visa"); err != nil {
		return "", err
	}
	struck := time.Now()
	if err := strike(leader); err != nil {
		return "", err
	}
	if _, err := s.payMany(ctx, 10, "tok_visa"); err != nil {
		return "", err
	}

	var next *local.Program
	err = s.until(ctx, "the other relay leads", func(ctx context.Context) (is bool, err error) {
		next, err = s.Service.Find(ctx, "relay")
		return err == nil && next != nil && next != leader, err
	})
	if err != nil {
		return "", err
	}
	took := time.Since(struck)
	what, err := after(ctx, leader)
	if err != nil {
		return "", err
	}

	n, err := s.awaitEffects(ctx, before, 40)
	if err != nil {
		return "", err
	}
	token, err := s.token(ctx)
	if err == nil && token <= tokens {
		err = fmt.Errorf("the fencing token is still %d", token)
	}
	if err != nil {
		return "", err
	}
	of, err := s.inOrder(ctx)
	return fmt.Sprintf("%s led %.1f s after, with fencing token %d; %sall %d events of 20 payments by card "+
		"have had their effect, and of %d records on the topics none is missing or out of order",
		next.Name, took.Seconds(), token, what, n, of), err
}

func (s *Stage) token(ctx context.Context) (token int64, err error) {
	err = s.db.QueryRow(ctx, `SELECT fencing_token FROM outbox_cursors WHERE relay = 'main'`).Scan(&token)
	if err != nil {
		return 0, fmt.Errorf("read the fencing token: %w", err)
	}
	return token, nil
}

// inOrder reads the topics from their beginning and returns how many records it compared.
func (s *Stage) inOrder(ctx context.Context) (of int64, err error) {
	sources := invariant.Sources{
		DB: s.db, Brokers: s.Service.Brokers(), TopicPrefix: local.TopicPrefix, Consumer: statements.Consumer,
	}
	watch, err := invariant.OpenWatch(ctx, sources, func(context.Context) ([]invariant.PSPEntry, error) {
		return nil, errors.New("not needed here")
	})
	if err != nil {
		return 0, err
	}
	defer watch.Close()

	names := []string{invariant.EventsLost, invariant.EventsOutOfOrder, invariant.EffectsLost}
	report, err := watch.Check(ctx, names...)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		if line := report.Line(name); line.Wrong > 0 {
			return 0, fmt.Errorf("%s: %d of %d", name, line.Wrong, line.Of)
		}
	}
	return report.Line(invariant.EffectsLost).Of, nil
}
