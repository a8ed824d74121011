package kafka

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/testenv"
)

// The number of partitions is asked of one broker, whose answer may be older than the topic's.
func TestNotedPartitions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events  bool  // whether the topic of 8 partitions has one
		noted   int32 // with the progress
		refused bool
	}{
		"too few, no event yet": {false, 1, false},
		"too few":               {true, 1, true},
		"too many":              {true, 9, true},
		"too many, no event":    {false, 9, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := Producer{Brokers: testenv.Brokers(t), TopicPrefix: testenv.TopicPrefix(t)}
			k.DrainOnPartitionChange = c.noted > 8 // it must go upwards only
			topic := k.TopicPrefix + "things"
			open := func() (*publisher, error) {
				p, _, err := k.Open(t.Context(), "main", "")
				if err != nil {
					return nil, err
				}
				t.Cleanup(p.Close)
				return p.(*publisher), nil
			}
			p, err := open()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := kadm.NewClient(p.client).CreateTopic(t.Context(), 8, 1, nil, topic); err != nil {
				t.Fatal(err)
			}
			// A broker may hear of the topic a moment after the controller has made it.
			testenv.Eventually(t, 30*time.Second, func() error {
				counts, _, err := p.countPartitions(t.Context(), slices.Values([]string{topic}))
				if err == nil && counts[topic] != 8 {
					err = fmt.Errorf("%d partitions", counts[topic])
				}
				return err
			})
			event := []relay.Message{{AggregateType: "things", AggregateID: "a", Headers: []byte("{}")}}
			progress := relay.Progress{Position: relay.Position{Batches: 1}}
			if c.events {
				if err := p.Publish(t.Context(), event, progress); err != nil {
					t.Fatal(err)
				}
			}
			p.counts[topic] = c.noted
			if err := p.keep(t.Context(), &progress); err != nil {
				t.Fatal(err)
			}

			for range 2 {
				p, err = open()
				var changed *relay.PartitionsError
				if c.refused {
					if !errors.As(err, &changed) || changed.Sent != c.noted || changed.Now != 8 || changed.GoingOn {
						t.Fatalf("Open returned %v", err)
					}
				} else if err != nil {
					t.Fatal(err)
				}
			}
			if !c.refused {
				if err := p.Publish(t.Context(), event, progress); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
