package relay_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/testenv"
)

// replicate brings the outbox into another database as a publication does.
func (d database) replicate(t *testing.T, to database, columns string) {
	t.Helper()
	for table, names := range map[string]string{"outbox_events": columns, "outbox_dead_letters": "*"} {
		rows, err := d.owner.Query(t.Context(), `SELECT `+names+` FROM `+table)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, f := range rows.FieldDescriptions() {
			names = append(names, f.Name)
		}
		all, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) ([]any, error) { return r.Values() })
		if err == nil {
			_, err = to.owner.CopyFrom(t.Context(), pgx.Identifier{table}, names, pgx.CopyFromRows(all))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

const (
	published = `id, event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload, headers, created_at`
	sequence  = `SELECT setval(pg_get_serial_sequence('outbox_events', 'id'), 1000)`
)

// remembering makes the broker's Open return what was kept last.
func (b *broker) remember() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kept = new(b.next)
}

// TestMovedRelayGoesOn: also with events that Kafka refused, which wait for an operator.
func TestMovedRelayGoesOn(t *testing.T) {
	t.Parallel()
	old, moved, b, p := newDatabase(t), newDatabase(t), &broker{}, &picky{}
	es := old.commit(t, "a", "b", "a")
	p.refuse(es[1])
	first := start(t, old.relay, p.open(b), nil)
	old.sentAll(t) // parked: what comes now waits
	es = append(es, old.commit(t, "b", "c")...)
	old.sentAll(t)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	b.remember()
	old.replicate(t, moved, published)
	moved.exec(t, sequence)

	last, err := (&relay.Relay{DB: moved.relay, Open: b.Open}).AdoptFrom(t.Context(), old.relay)
	if err != nil || last != 5 {
		t.Fatal(last, err)
	}
	b.kept = nil // fixture: what a Publisher keeps is not kept
	p.refuse()
	start(t, moved.relay, p.open(b), nil)
	letter := letters(t, moved)[0]
	if err := relay.RetryDeadLetter(t.Context(), moved.relay, "main", letter.ID); err != nil {
		t.Fatal(err)
	}
	es = append(es, moved.commit(t, "a")...)
	testenv.Eventually(t, soon, func() error {
		if n := len(b.received()); n < len(es) {
			return fmt.Errorf("%d of %d events arrived", n, len(es))
		}
		return nil
	})
	if diff := cmp.Diff(sorted(es), sorted(b.ids())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := of(b.received(), "b"); !slices.Equal(got, []uuid.UUID{es[1], es[3]}) {
		t.Errorf("what waited came as %v, want %v and %v", got, es[1], es[3])
	}
}

func TestAdoptFromRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		columns, there, here, want string
	}{
		"replication that is not complete": {
			published, "", `DELETE FROM outbox_events WHERE id = (SELECT max(id) FROM outbox_events)`,
			"replication is not complete",
		},
		"rows with transaction ids of the source": {
			"xid, " + published, "", `UPDATE outbox_events SET xid = '9000000000000' WHERE id = 1`,
			"transaction ids of the source",
		},
		"a cursor of its own": {
			published, "", `INSERT INTO outbox_cursors (relay, batches, seen, system_identifier, database_oid)
				SELECT 'main', 7, pg_current_snapshot(), s.system_identifier, d.oid
				FROM pg_control_system() s, pg_database d WHERE datname = current_database()`,
			`has a cursor "main" of its own`,
		},
		"a sequence that is behind": {
			published, "", `SELECT setval(pg_get_serial_sequence('outbox_events', 'id'), 1)`, "the sequence",
		},
		"a source that leads": {
			published, `UPDATE outbox_cursors SET lease_until = now() + interval '1 hour'`, "",
			"another relay leads at the source",
		},
		"a source with events that are not sent": {
			published, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
				VALUES ('things', 'a', 'thing.changed', '')`, "", "events that are not sent",
		},
		"a source that is another cluster's copy": {
			published, `UPDATE outbox_cursors SET system_identifier = 1`, "", "is of another cluster",
		},
		"a source without a cursor": {published, `DELETE FROM outbox_cursors`, "", "there is no cursor"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			old, moved, b := newDatabase(t), newDatabase(t), &broker{}
			old.commit(t, "a", "b")
			first := start(t, old.relay, b.Open, nil)
			old.sentAll(t)
			if err := first.stop(); err != nil {
				t.Fatal(err)
			}
			b.remember()
			old.replicate(t, moved, c.columns)
			for _, sql := range []string{sequence, c.here} {
				moved.exec(t, sql)
			}
			old.exec(t, c.there)

			const row = `SELECT coalesce((SELECT c::text FROM outbox_cursors c), '')`
			before := ask[string](t, moved, row)
			_, err := (&relay.Relay{DB: moved.relay, Open: b.Open}).AdoptFrom(t.Context(), old.relay)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if after := ask[string](t, moved, row); after != before {
				t.Errorf("the cursor was %s and is %s", before, after)
			}
		})
	}
}
