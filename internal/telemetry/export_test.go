package telemetry_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/proto"

	"github.com/oncepay/oncepay/internal/telemetry"
)

// The tests in this file set OpenTelemetry's globals and the environment, so they are not parallel.

// collector takes what is exported and keeps the last of each path.
type collector struct {
	*httptest.Server
	mu   sync.Mutex
	last map[string][]byte
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
	c := &collector{last: map[string][]byte{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // what was cut off is found by who looks at it
		c.mu.Lock()
		defer c.mu.Unlock()
		c.last[r.URL.Path] = body
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *collector) received(path string) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last[path]
}

// metrics decodes what came last. A message of the collector's service has the same bytes as the
// data's own.
func (c *collector) metrics(t *testing.T) map[string]*metrics.Metric {
	t.Helper()
	var data metrics.MetricsData
	if err := proto.Unmarshal(c.received("/v1/metrics"), &data); err != nil {
		t.Fatal(err)
	}
	byName := map[string]*metrics.Metric{}
	for _, resource := range data.GetResourceMetrics() {
		for _, scope := range resource.GetScopeMetrics() {
			for _, m := range scope.GetMetrics() {
				byName[m.GetName()] = m
			}
		}
	}
	return byName
}

func TestStopSendsRegistryMetrics(t *testing.T) {
	for name, env := range map[string]func(url string) map[string]string{
		"one endpoint for all": func(url string) map[string]string { return map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": url} },
		"one for metrics": func(url string) map[string]string {
			return map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": url + "/v1/metrics"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCollector(t)
			for k, v := range env(c.URL) {
				t.Setenv(k, v)
			}
			reg := telemetry.NewRegistry()
			relay := telemetry.NewRelay(reg)
			stop, err := telemetry.Start(t.Context(), "oncepay-test", reg, os.Getenv)
			if err != nil {
				t.Fatal(err)
			}
			relay.Published(100, 20*time.Millisecond)
			relay.TopicUnavailable("payments")
			stop()

			sent := c.metrics(t)
			if p := sent["relay_events_published_total"].GetSum().GetDataPoints(); len(p) != 1 || p[0].GetAsDouble() != 100 || !sent["relay_events_published_total"].GetSum().GetIsMonotonic() {
				t.Errorf("relay_events_published_total: %v", p)
			}
			if p := sent["relay_batch_events"].GetHistogram().GetDataPoints(); len(p) != 1 || p[0].GetCount() != 1 || p[0].GetSum() != 100 {
				t.Errorf("relay_batch_events: %v", p)
			}
			if p := sent["relay_topic_unavailable"].GetGauge().GetDataPoints(); len(p) != 1 || p[0].GetAsDouble() != 1 ||
				p[0].GetAttributes()[0].GetValue().GetStringValue() != "payments" {
				t.Errorf("relay_topic_unavailable: %v", p)
			}
			if sent["go_goroutines"] == nil || sent["build_info"] == nil {
				t.Error("what every program shows was not sent")
			}
		})
	}
}

func TestMetricsAreNotSentByDefault(t *testing.T) {
	c := newCollector(t)
	for name, env := range map[string]map[string]string{
		"nothing set":        {},
		"only traces":        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": c.URL + "/v1/traces"},
		"none of them":       {"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL, "OTEL_METRICS_EXPORTER": "none"},
		"the SDK is off":     {"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL, "OTEL_SDK_DISABLED": "true"},
		"traces by exporter": {"OTEL_TRACES_EXPORTER": "none"},
	} {
		t.Run(name, func(t *testing.T) {
			// What a wrong exporter would send to, were it made.
			t.Setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", c.URL+"/v1/metrics")
			stop, err := telemetry.Start(t.Context(), "oncepay-test", telemetry.NewRegistry(), func(n string) string { return env[n] })
			if err != nil {
				t.Fatal(err)
			}
			stop()
			if body := c.received("/v1/metrics"); body != nil {
				t.Errorf("%d bytes were sent", len(body))
			}
		})
	}
}
