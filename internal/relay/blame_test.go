package relay_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/relay"
)

func TestErrorNamesBrokerOrDatabase(t *testing.T) {
	t.Parallel()
	away := errors.New("no such host")
	for name, c := range map[string]struct {
		broker func(t *testing.T, d database) *broker
		set    func(*relay.Relay)
		spoil  func(t *testing.T, d database)
		want   func(err error) bool
	}{
		"it cannot be opened": {
			set: func(r *relay.Relay) {
				r.Open = func(context.Context, string, string) (relay.Publisher, *relay.Progress, error) { return nil, nil, away }
			},
			want: func(err error) bool { return errors.Is(err, away) && brokers(err) },
		},
		"it takes nothing": {
			broker: func(*testing.T, database) *broker {
				return &broker{onPublish: func(context.Context, []relay.Message) (int, error) { return 0, away }}
			},
			want: func(err error) bool { return errors.Is(err, away) && brokers(err) },
		},
		"it refuses an event": {
			broker: func(*testing.T, database) *broker {
				return &broker{onPublish: func(context.Context, []relay.Message) (int, error) {
					return 0, &relay.BatchError{Refused: true, Err: away}
				}}
			},
			want: func(err error) bool {
				return refusal(err) != nil && errors.Is(err, away)
			},
		},
		"the database cannot be read": {
			spoil: func(t *testing.T, d database) { d.exec(t, `REVOKE SELECT ON outbox_events FROM relay`) },
			want:  func(err error) bool { return !brokers(err) && !errors.Is(err, relay.ErrFenced) },
		},
		"another one has become leader meanwhile": {
			broker: func(t *testing.T, d database) *broker {
				return &broker{onPublish: func(ctx context.Context, _ []relay.Message) (int, error) {
					d.exec(t, steal)
					<-ctx.Done()
					return 0, ctx.Err()
				}}
			},
			set:  func(r *relay.Relay) { r.Lease = 6 * time.Second },
			want: func(err error) bool { return errors.Is(err, relay.ErrFenced) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, b := newDatabase(t), &broker{}
			if c.broker != nil {
				b = c.broker(t, d)
			}
			r := start(t, d.relay, b.Open, c.set)
			if c.spoil != nil {
				c.spoil(t, d)
			}
			d.commit(t, "a")
			if err := next(t, r.errors, "the end of a term"); !c.want(err) {
				t.Errorf("OnError was told %v", err)
			}
		})
	}
}

// brokers says whether err puts it down to the broker.
func brokers(err error) bool {
	var b *relay.BrokerError
	return errors.As(err, &b)
}
