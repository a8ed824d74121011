package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/oncepay/oncepay/internal/testenv"
)

// openBroker finds the broker of KAFKA_BROKERS, or starts a container where there is Docker, or the broker in this process; b.kfake asks for that.
func (b *relayBench) openBroker(ctx context.Context, getenv func(string) string) (testenv.Server, error) {
	start := func(more map[string]string) (testenv.Server, error) {
		s, err := testenv.StartBroker(ctx, func(name string) string {
			switch name {
			case "TEST_KAFKA_BROKERS", "TEST_SERVERS":
				return more[name]
			}
			return getenv(name)
		})
		s.Name = strings.TrimPrefix(s.Name, "Kafka, ")
		return s, err
	}
	brokers := getenv("KAFKA_BROKERS")
	switch {
	case b.kfake:
		return start(nil)
	case brokers != "":
		s, err := start(map[string]string{"TEST_KAFKA_BROKERS": brokers})
		if err != nil {
			return s, fmt.Errorf("reach Kafka at KAFKA_BROKERS=%s: %s", brokers, lastPart(err))
		}
		s.Name = "brokers at " + brokers
		return s, nil
	}
	s, err := start(map[string]string{"TEST_SERVERS": "docker"})
	if err == nil || ctx.Err() != nil {
		return s, err
	}
	b.say("no container of Kafka (%s): measuring with the broker in this process", lastPart(err))
	return start(nil)
}

// lastPart is the end of a chain of errors, on one line: what went wrong, not what was being done.
func lastPart(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	parts := strings.Split(text, ": ")
	return strings.Join(parts[max(0, len(parts)-2):], ": ")
}
