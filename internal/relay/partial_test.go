package relay_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/relay/kafka"
	"github.com/oncepay/oncepay/internal/testenv"
)

// One event waits for its topic, the others of its batch must not go out again with each attempt.
func TestMissingTopicDoesNotRepeatItsBatch(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	d := newDatabase(t)
	d.commit(t, "a", "b", "c")
	d.exec(t, `INSERT INTO outbox_events (event_id, aggregate_type, aggregate_id, event_type, payload) VALUES (gen_random_uuid(), 'nowhere', 'x', 't', '{}')`)
	d.commit(t, "a", "b", "c")
	kafka := kafka.Producer{Brokers: cluster.ListenAddrs(), Topics: []string{"things"}, Source: "/test"}
	r := start(t, d.relay, kafka.Open, nil)
	for range 6 {
		var missing *relay.TopicError
		if err := next(t, r.errors, "an error"); !errors.As(err, &missing) || missing.Topic != "nowhere" {
			t.Fatalf("the term ended with %v", err)
		}
	}
	reader := client(t, cluster.ListenAddrs(), "things")
	n := len(records(t, reader, 6))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	for ctx.Err() == nil {
		n += reader.PollFetches(ctx).NumRecords()
	}
	if n > 2*6 {
		t.Errorf("6 events became %d records in 6 attempts", n)
	}
}

// A name that no topic can have is no outage: nobody could mend it.
func TestIllegalTopicMakesDeadLetter(t *testing.T) {
	t.Parallel()
	brokers, prefix := testenv.Brokers(t), testenv.TopicPrefix(t)
	d := newDatabase(t)
	d.exec(t, `INSERT INTO outbox_events (event_id, aggregate_type, aggregate_id, event_type, payload) VALUES (gen_random_uuid(), 'bad name!', 'x', 't', '{}')`)
	d.commit(t, "a")
	start(t, d.relay, kafka.Producer{Brokers: brokers, TopicPrefix: prefix, Topics: []string{"things"}, Source: "/test"}.Open, nil)
	records(t, client(t, brokers, prefix+"things"), 1)
	if got := letters(t, d); len(got) != 1 || got[0].AggregateType != "bad name!" {
		t.Errorf("dead letters: %+v", got)
	}
}

// refusing refuses one event before it is sent, as long as it is told to.
type refusing struct {
	relay.Publisher
	id    uuid.UUID
	times *int
	again func() // called when the event was refused
}

func (p *refusing) Publish(ctx context.Context, batch []relay.Message, next relay.Progress) error {
	for i, m := range batch {
		if m.EventID == p.id && *p.times > 0 {
			*p.times--
			if *p.times == 0 {
				defer p.again()
			}
			return &relay.BatchError{Refused: true, Index: i, Unsent: true, Err: errors.New("too large")}
		}
	}
	return p.Publisher.Publish(ctx, batch, next)
}

func TestLetterRefusedAgainAndSkippedReleasesOthers(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	es := d.commit(t, "x", "x", "y")
	times := 2
	decided := make(chan struct{})
	skip := func() { // as soon as it is parked again
		go func() {
			defer close(decided)
			ctx, cancel := context.WithTimeout(context.Background(), soon)
			defer cancel()
			for ctx.Err() == nil {
				if tag, err := d.owner.Exec(ctx, `UPDATE outbox_dead_letters SET state = 'skipped', note = 'test' WHERE event_id = $1 AND state = 'parked'`, es[0]); err != nil || tag.RowsAffected() > 0 {
					return
				}
			}
		}()
	}
	open := func(ctx context.Context, relay, cursor string) (relay.Publisher, *relay.Progress, error) {
		inner, kept, err := b.Open(ctx, relay, cursor)
		return &refusing{inner, es[0], &times, skip}, kept, err
	}
	start(t, d.relay, open, nil)
	testenv.Eventually(t, soon, func() error {
		if got := letters(t, d); len(got) != 1 || got[0].State != "parked" || got[0].Waiting != 2 {
			return fmt.Errorf("dead letters: %+v", got)
		}
		return nil
	})
	if err := relay.RetryDeadLetter(t.Context(), d.relay, "main", letters(t, d)[0].ID); err != nil {
		t.Fatal(err)
	}
	next(t, decided, "the decision")
	d.commit(t, "z")
	testenv.Eventually(t, soon, func() error {
		got := b.received()
		if len(of(got, "z")) != 1 || len(of(got, "x")) != 1 || of(got, "x")[0] != es[1] {
			return fmt.Errorf("of z %d events arrived, of x %v", len(of(got, "z")), of(got, "x"))
		}
		return nil
	})
}

func TestSkippedEventAheadOfCursorIsNotSent(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	es := d.commit(t, "x", "x", "y")
	d.exec(t, `INSERT INTO outbox_dead_letters (relay, id, xid, event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at, refusal, state, note)
		SELECT 'main', id, xid, event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at, 'too large', 'skipped', 'a test'
		FROM outbox_events WHERE event_id = $1`, es[0])
	start(t, d.relay, b.Open, nil)
	b.waitFor(t, 2)
	if got := b.ids(); len(got) != 2 || got[0] != es[1] || got[1] != es[2] {
		t.Errorf("sent were %v, want %v", got, es[1:])
	}
}

// What stands before the refused event, and was not sent when the term ended, goes out in the next one.
func TestEventBeforeRefusedOneIsSentByNextTerm(t *testing.T) {
	t.Parallel()
	d, b, p := newDatabase(t), &broker{}, &picky{}
	es := d.commit(t, "x", "x", "x")
	p.refuse(es[1])
	d.exec(t, `INSERT INTO outbox_dead_letters (relay, id, xid, event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at, refusal)
		SELECT 'main', id, xid, event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at, 'too large'
		FROM outbox_events WHERE event_id = $1`, es[1])
	start(t, d.relay, p.open(b), nil)
	b.waitFor(t, 1)
	testenv.Eventually(t, soon, func() error {
		if got := letters(t, d); len(got) != 1 || got[0].Waiting != 2 {
			return fmt.Errorf("dead letters: %+v", got)
		}
		return nil
	})
	if got := b.ids(); len(got) != 1 || got[0] != es[0] {
		t.Errorf("sent were %v, want %v", got, es[0])
	}
}
