package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/testenv"
)

// A client's own trace: the traceparent that chain.send sends.
const (
	clientTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	clientSpan  = "00f067aa0ba902b7"
)

// traced starts the programs again, with env, and a worker beside them with more.
func (c *chain) traced(env []string, more ...string) (worker *process.Process) {
	c.t.Helper()
	c.api.Stop()
	c.relay.Stop()
	c.consumer.Stop()
	join := func(all ...[]string) []string { return slices.Concat(append(all, env)...) }
	c.relay = c.start("relay", join(c.relayEnv, []string{"DATABASE_URL=" + c.url("relay")})...)
	c.consumer = c.start("consumer", join(c.consumerEnv, []string{"DATABASE_URL=" + c.url("consumer")})...)
	c.api = c.start("api", join([]string{"DATABASE_URL=" + c.url("api_write"), "DATABASE_READ_URL=" + c.url("api_read"), "HTTP_ADDR=127.0.0.1:0"})...)
	if len(more) == 0 {
		return nil
	}
	return c.start("worker", join(more, c.relayEnv, []string{"DATABASE_URL=" + c.url("worker")})...)
}

// exportTo makes a program send its spans there, soon after they end.
func exportTo(endpoint string, more ...string) []string {
	return append(more, "OTEL_EXPORTER_OTLP_ENDPOINT="+endpoint, "OTEL_BSP_SCHEDULE_DELAY=100")
}

const payRequest = "POST /api/v1/payments"

func TestTraceGoesFromRequestToConsumer(t *testing.T) {
	t.Parallel()
	c, b := newChain(t), newBackend(t)
	c.traced(exportTo(b.URL, "OTEL_EXPORTER_OTLP_COMPRESSION=none", "OTEL_METRIC_EXPORT_INTERVAL=500"))
	if a, err := c.pay(t.Context(), "traced", 2500); err != nil || a.status != http.StatusCreated {
		t.Fatalf("%v %+v", err, a)
	}

	b.follow(t,
		step{service: "api", name: payRequest, below: client},
		step{service: "consumer", name: "process " + c.prefix + "payments", below: payRequest})
	for service, metric := range map[string]string{"api": "idempotency_requests_total", "relay": "relay_commit_to_acknowledge_seconds", "consumer": "inbox_events_total"} {
		testenv.Eventually(t, time.Minute, func() error {
			if !b.measured(service, metric) {
				return fmt.Errorf("%s has not sent %s", service, metric)
			}
			return nil
		})
	}
}
