package relay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/relay/kafka"
	"github.com/oncepay/oncepay/internal/testenv"
)

// upgrade makes a database look as if pg_upgrade had brought it here: cursor and progress are of
// another cluster.
func upgrade(t *testing.T, d database, k kafka.Producer) {
	t.Helper()
	ofAnotherCluster(t, d, k)
	d.exec(t, `UPDATE outbox_cursors SET system_identifier = system_identifier + 1`)
}

// ofAnotherCluster changes what Kafka has.
func ofAnotherCluster(t *testing.T, d database, k kafka.Producer) {
	t.Helper()
	p, kept, err := k.Open(t.Context(), "main", d.cursorID(t))
	if err != nil || kept == nil {
		t.Fatal(kept, err)
	}
	defer p.Close()
	kept.SystemIdentifier++
	if err := p.Publish(t.Context(), nil, *kept); err != nil {
		t.Fatal(err)
	}
}

// drained waits until everything is sent and Kafka has the record of it, as an operator does.
func drained(t *testing.T, d database, k kafka.Producer) {
	t.Helper()
	d.sentAll(t)
	if k.ExactlyOnce {
		return // it came with the events, and Open would fence the relay
	}
	testenv.Eventually(t, soon, func() error {
		p, kept, err := k.Open(t.Context(), "main", d.cursorID(t))
		if err != nil {
			return err
		}
		p.Close()
		if at := ask[int64](t, d, `SELECT batches FROM outbox_cursors`); kept == nil || kept.Batches < at {
			return fmt.Errorf("the cursor is at %d, Kafka has %+v", at, kept)
		}
		return nil
	})
}

// refusesUpgrade fails the test unless a relay names the command.
func refusesUpgrade(t *testing.T, d database, k kafka.Producer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	err := (&relay.Relay{DB: d.relay, Open: k.Open}).Run(ctx)
	if !errors.Is(err, relay.ErrRestored) || !strings.Contains(err.Error(), "run `relay adopt`") ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("Run returned %v", err)
	}
}

// forEachDelivery runs a test with topics of its own.
func forEachDelivery(t *testing.T, test func(t *testing.T, k kafka.Producer)) {
	t.Parallel()
	for _, exactlyOnce := range []bool{false, true} {
		t.Run(fmt.Sprintf("exactly once %t", exactlyOnce), func(t *testing.T) {
			t.Parallel()
			test(t, kafka.Producer{
				Brokers: testenv.Brokers(t), TopicPrefix: testenv.TopicPrefix(t),
				Topics: []string{"things"}, ExactlyOnce: exactlyOnce,
			})
		})
	}
}

// onTopic returns the events of the topic, in the order of each partition.
func onTopic(t *testing.T, k kafka.Producer) (ids []uuid.UUID) {
	t.Helper()
	for _, r := range readTopic(t, k.Brokers, k.TopicPrefix+"things", kgo.ReadCommitted()) {
		for _, h := range r.Headers {
			if h.Key == "ce_id" {
				ids = append(ids, uuid.MustParse(string(h.Value)))
			}
		}
	}
	return ids
}

func sorted(ids []uuid.UUID) []uuid.UUID {
	return slices.SortedFunc(slices.Values(ids), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
}

// TestAdoptedUpgradeGoesOn: nothing is lost and nothing comes twice, also of what the old cluster
// left: unsent events, one that committed late, and a cursor that is behind what was sent.
func TestAdoptedUpgradeGoesOn(t *testing.T) {
	forEachDelivery(t, func(t *testing.T, k kafka.Producer) {
		d := newDatabase(t)
		first := start(t, d.relay, k.Open, nil)
		want := d.commit(t, "a", "b")
		d.sentAll(t)
		d.exec(t, `CREATE TABLE before AS SELECT batches, last_id, seen FROM outbox_cursors`)
		open := d.begin(t)
		late := changeAll(t, open, "late")
		want = append(want, d.commit(t, "a", "c")...)
		drained(t, d, k)
		if err := first.stop(); err != nil {
			t.Fatal(err)
		}
		d.exec(t, `UPDATE outbox_cursors c SET batches = b.batches, last_id = b.last_id, seen = b.seen
			FROM before b`)
		commit(t, open)
		unsent := d.commit(t, "a")
		upgrade(t, d, k)
		refusesUpgrade(t, d, k)

		r := &relay.Relay{DB: d.relay, Open: k.Open}
		if last, err := r.Adopt(t.Context()); err != nil || last == 0 {
			t.Fatal(last, err)
		}
		// As after a crash before the cursor was changed.
		d.exec(t, `UPDATE outbox_cursors c SET batches = b.batches, last_id = b.last_id, seen = b.seen,
			system_identifier = system_identifier + 1 FROM before b`)
		if last, err := r.Adopt(t.Context()); err != nil || last == 0 {
			t.Fatal(last, err)
		}
		if _, err := r.Adopt(t.Context()); !errors.Is(err, relay.ErrAdopted) {
			t.Errorf("a second time: %v", err)
		}

		start(t, d.relay, k.Open, nil)
		want = append(append(append(want, late...), unsent...), d.commit(t, "a", "b", "c")...)
		d.sentAll(t)
		if diff := cmp.Diff(sorted(want), sorted(onTopic(t, k))); diff != "" {
			t.Errorf("on the topic (-want +got):\n%s", diff)
		}
	})
}

// TestTheClusterThatWasLeftStops: a relay that runs there ends when it leads next, until somebody
// goes back to it.
func TestTheClusterThatWasLeftStops(t *testing.T) {
	forEachDelivery(t, func(t *testing.T, k kafka.Producer) {
		d := newDatabase(t)
		first := start(t, d.relay, k.Open, nil)
		want := d.commit(t, "a")
		drained(t, d, k)
		if err := first.stop(); err != nil {
			t.Fatal(err)
		}
		ofAnotherCluster(t, d, k) // which was adopted, and has sent nothing
		want = append(want, d.commit(t, "a")...)
		refusesUpgrade(t, d, k)

		if _, err := (&relay.Relay{DB: d.relay, Open: k.Open}).Adopt(t.Context()); err != nil {
			t.Fatal(err)
		}
		start(t, d.relay, k.Open, nil)
		d.sentAll(t)
		if diff := cmp.Diff(want, onTopic(t, k)); diff != "" {
			t.Errorf("on the topic (-want +got):\n%s", diff)
		}
	})
}

// TestAdoptRefuses: what is no upgrade stays refused, and nothing of the cursor changes.
func TestAdoptRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ change, want string }{
		"a database that went back": {
			`DELETE FROM outbox_events WHERE id = (SELECT max(id) FROM outbox_events);
			 UPDATE outbox_cursors c SET batches = b.batches, last_id = b.last_id, seen = b.seen FROM before b`,
			relay.ErrRestored.Error(),
		},
		"a relay that leads": {
			`UPDATE outbox_cursors SET holder = 'relay-7', lease_until = now() + interval '1 hour'`,
			"relay-7 leads: stop every relay",
		},
		"a dump, by the cursor": {
			`UPDATE outbox_cursors SET seen = '9000000000000:9000000000000:'`, "behind the cursor",
		},
		"a dump, by a row": {
			`UPDATE outbox_events SET xid = '9000000000000' WHERE id = 1`, "behind the cursor",
		},
		"another database": {`UPDATE outbox_cursors SET database_oid = 1`, "by its OID"},
		"a sequence that is behind": {
			`SELECT setval(pg_get_serial_sequence('outbox_events', 'id'), 1)`, "the sequence",
		},
		"another Kafka": {`UPDATE outbox_cursors SET cursor_id = gen_random_uuid()`, "Kafka has no record"},
		"no cursor":     {`DELETE FROM outbox_cursors`, "there is no cursor"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t)
			k := kafka.Producer{
				Brokers: testenv.Brokers(t), TopicPrefix: testenv.TopicPrefix(t),
				Topics: []string{"things"}, ExactlyOnce: true,
			}
			first := start(t, d.relay, k.Open, nil)
			d.commit(t, "a")
			d.sentAll(t)
			d.exec(t, `CREATE TABLE before AS SELECT batches, last_id, seen FROM outbox_cursors`)
			d.commit(t, "a")
			drained(t, d, k)
			if err := first.stop(); err != nil {
				t.Fatal(err)
			}
			upgrade(t, d, k)
			d.exec(t, c.change)

			const row = `SELECT coalesce((SELECT to_jsonb(c) - 'fencing_token' - 'holder' - 'lease_until'
				FROM outbox_cursors c)::text, '')`
			before := ask[string](t, d, row)
			_, err := (&relay.Relay{DB: d.relay, Open: k.Open}).Adopt(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if after := ask[string](t, d, row); after != before {
				t.Errorf("the cursor was %s and is %s", before, after)
			}
		})
	}
}

// TestAdoptIsNoWayOutOfARestore: of the same cluster, to an earlier point.
func TestAdoptIsNoWayOutOfARestore(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	sendUnmoved(t, d, b)
	d.exec(t, `DELETE FROM outbox_events WHERE id = (SELECT max(id) FROM outbox_events)`)

	_, err := (&relay.Relay{DB: d.relay, Open: b.Open}).Adopt(t.Context())
	if !errors.Is(err, relay.ErrRestored) {
		t.Errorf("Adopt returned %v", err)
	}
	refuses(t, d, b)
}

// TestClustersShareAKafka: two databases, one broker, the same names. Neither fences the other, and
// each finds its own progress again.
func TestClustersShareAKafka(t *testing.T) {
	forEachDelivery(t, func(t *testing.T, k kafka.Producer) {
		one, two := newDatabase(t), newDatabase(t)
		first, second := start(t, one.relay, k.Open, nil), start(t, two.relay, k.Open, nil)
		next(t, first.leading, "a leader of the first")
		next(t, second.leading, "a leader of the second")

		want := append(one.commit(t, "a", "b"), two.commit(t, "c", "d")...)
		one.sentAll(t)
		two.sentAll(t)
		want = append(append(want, one.commit(t, "a")...), two.commit(t, "c")...)
		one.sentAll(t)
		two.sentAll(t)
		for _, r := range []run{first, second} {
			select {
			case err := <-r.errors:
				t.Errorf("a term ended: %v", err)
			default:
			}
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}
		}

		// Each cursor comes from its own progress, although the other's was kept later.
		one.exec(t, `UPDATE outbox_cursors SET fencing_token = fencing_token + 1`)
		third, fourth := start(t, one.relay, k.Open, nil), start(t, two.relay, k.Open, nil)
		want = append(append(want, one.commit(t, "b")...), two.commit(t, "d")...)
		one.sentAll(t)
		two.sentAll(t)
		if err := errors.Join(third.stop(), fourth.stop()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(sorted(want), sorted(onTopic(t, k))); diff != "" {
			t.Errorf("on the topic (-want +got):\n%s", diff)
		}
	})
}
