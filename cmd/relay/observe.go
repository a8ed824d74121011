package main

import (
	"errors"
	"time"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/telemetry"
)

// observer turns what the relay tells into metrics.
type observer struct{ metrics *telemetry.Relay }

func (o observer) published(events []relay.Message, took time.Duration) {
	o.metrics.Published(len(events), took)
	now := time.Now()
	for i := range events {
		o.metrics.Acknowledged(now.Sub(events[i].CreatedAt))
	}
}

func (o observer) failed(err error) {
	o.metrics.Error(kind(err))
	if topic := new(relay.TopicError); errors.As(err, &topic) {
		o.metrics.TopicUnavailable(topic.Topic)
	}
	if changed := new(relay.PartitionsError); errors.As(err, &changed) {
		o.metrics.PartitionsChanged(changed.Topic, changed.Sent, changed.Now)
	}
}

// kind says what ended a round of the relay, as a label. The log has the rest.
func kind(err error) string {
	var (
		topic   *relay.TopicError
		refused *relay.RefusedError
		broker  *relay.BrokerError
	)
	switch {
	case errors.Is(err, relay.ErrFenced): // what the broker said meanwhile is a consequence
		return "fenced"
	case errors.As(err, &topic):
		return "topic"
	case errors.As(err, &refused):
		return "refused"
	case errors.As(err, &broker):
		return "broker"
	}
	return "database"
}
