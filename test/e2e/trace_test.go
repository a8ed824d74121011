package e2e

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/oncepay/oncepay/internal/testenv"
)

// collector takes the spans and metrics of all programs. A message of the collector's service has the same bytes as the data's own.
type collector struct {
	*httptest.Server
	mu      sync.Mutex
	spans   map[string][]*trace.Span   // by service
	metrics map[string]map[string]bool // names by service
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{spans: map[string][]*trace.Span{}, metrics: map[string]map[string]bool{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = c.take(r.URL.Path, body)
		}
		if err != nil {
			t.Errorf("%s: %v", r.URL.Path, err)
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *collector) take(path string, body []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch path {
	case "/v1/traces":
		var data trace.TracesData
		if err := proto.Unmarshal(body, &data); err != nil {
			return err
		}
		for _, of := range data.GetResourceSpans() {
			for _, scope := range of.GetScopeSpans() {
				c.spans[service(of.GetResource())] = append(c.spans[service(of.GetResource())], scope.GetSpans()...)
			}
		}
	case "/v1/metrics":
		var data metrics.MetricsData
		if err := proto.Unmarshal(body, &data); err != nil {
			return err
		}
		for _, of := range data.GetResourceMetrics() {
			names := map[string]bool{}
			for _, scope := range of.GetScopeMetrics() {
				for _, m := range scope.GetMetrics() {
					names[m.GetName()] = true
				}
			}
			c.metrics[service(of.GetResource())] = names
		}
	default:
		return errors.New("nobody listens there")
	}
	return nil
}

func service(r *resource.Resource) string {
	for _, a := range r.GetAttributes() {
		if a.GetKey() == "service.name" {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

// span returns a service's span of that name in a trace, nil if it has none.
func (c *collector) span(service, name, traceID string) *trace.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans[service] {
		if s.GetName() == name && hex.EncodeToString(s.GetTraceId()) == traceID {
			return s
		}
	}
	return nil
}

func (c *collector) measured(service, metric string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.metrics[service][metric]
}

func TestTraceGoesFromRequestToConsumer(t *testing.T) {
	t.Parallel()
	c, collected := newChain(t), newCollector(t)
	otlp := []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collected.URL, "OTEL_EXPORTER_OTLP_COMPRESSION=none", "OTEL_BSP_SCHEDULE_DELAY=100", "OTEL_METRIC_EXPORT_INTERVAL=500"}
	c.api.Stop()
	c.relay.Stop()
	c.consumer.Stop()
	c.relay = c.start("relay", append(otlp, append(c.relayEnv, "DATABASE_URL="+c.url("relay"))...)...)
	c.consumer = c.start("consumer", append(otlp, append(c.consumerEnv, "DATABASE_URL="+c.url("consumer"))...)...)
	c.api = c.start("api", append(otlp, "DATABASE_URL="+c.url("api_write"), "DATABASE_READ_URL="+c.url("api_read"), "HTTP_ADDR=127.0.0.1:0")...)
	if a, err := c.pay(t.Context(), "traced", 2500); err != nil || a.status != http.StatusCreated {
		t.Fatalf("%v %+v", err, a)
	}

	const traceID = "4bf92f3577b34da6a3ce929d0e0e4736" // of every request's traceparent here
	var request, event *trace.Span
	testenv.Eventually(t, time.Minute, func() error {
		request, event = collected.span("api", "POST /api/v1/payments", traceID), collected.span("consumer", "consume event", traceID)
		if request == nil || event == nil {
			return fmt.Errorf("the API's span is %v, the consumer's %v", request, event)
		}
		return nil
	})
	if got := hex.EncodeToString(request.GetParentSpanId()); got != "00f067aa0ba902b7" {
		t.Errorf("the API's span has the parent %s, want the client's", got)
	}
	if got, want := hex.EncodeToString(event.GetParentSpanId()), hex.EncodeToString(request.GetSpanId()); got != want {
		t.Errorf("the consumer's span has the parent %s, want the API's, %s", got, want)
	}
	for service, metric := range map[string]string{"api": "idempotency_requests_total", "relay": "relay_commit_to_acknowledge_seconds", "consumer": "inbox_events_total"} {
		testenv.Eventually(t, time.Minute, func() error {
			if !collected.measured(service, metric) {
				return fmt.Errorf("%s has not sent %s", service, metric)
			}
			return nil
		})
	}
}
