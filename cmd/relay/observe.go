package main

import (
	"errors"
	"time"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/telemetry"
)

// observer turns the relay's callbacks into metrics and spans, and tells the probe.
type observer struct {
	metrics *telemetry.Relay
	probe   *probe
	prefix  string // of topics
}

func (o observer) published(events []relay.Message, took time.Duration) {
	o.metrics.Published(len(events), took)
	o.probe.failing(nil)

	now := time.Now()
	for i := range events {
		ctx := o.trace(&events[i], len(events), now.Add(-took), now)
		o.metrics.Acknowledged(ctx, now.Sub(events[i].CreatedAt))
	}
}

func (o observer) failed(err error) {
	o.metrics.Error(kind(err))
	o.probe.failing(err)

	// Problems of a topic are also reported by topic.
	if topic := new(relay.TopicError); errors.As(err, &topic) {
		o.metrics.TopicUnavailable(topic.Topic)
	}

	if changed := new(relay.PartitionsError); errors.As(err, &changed) {
		o.metrics.PartitionsChanged(changed.Topic, changed.Sent, changed.Now)
	}
}

// kind returns the metric label for what ended a round of the relay. The log has the details.
func kind(err error) string {
	var (
		topic  *relay.TopicError
		failed *relay.BatchError
		broker *relay.BrokerError
	)

	switch {
	case errors.Is(err, relay.ErrFenced): // a broker error beside it is only a consequence
		return "fenced"
	case errors.As(err, &topic):
		return "topic"
	case errors.As(err, &failed) && failed.Refused:
		return "refused"
	case errors.As(err, &broker):
		return "broker"
	}
	return "database"
}
