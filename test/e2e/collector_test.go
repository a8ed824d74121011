package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/oncepay/oncepay/internal/testenv"
)

// These tests run a real OpenTelemetry Collector: its own receiver, processors and exporter, built
// from test/collector in the version that Compose runs.

const collectorConfig = "../../deploy/otel/collector.yaml"

// TestCollectorGetsOneTrace: a payment by card, its event at the consumer and its webhook are one
// trace, as the collector understood it with the project's configuration. Only addresses differ.
func TestCollectorGetsOneTrace(t *testing.T) {
	t.Parallel()
	b := newBackend(t)
	endpoint := startCollector(t, b)
	c := newChain(t)
	c.takeCards()
	c.traced(exportTo(endpoint, "OTEL_METRICS_EXPORTER=none", "WEBHOOKS_ALLOW=127.0.0.0/8"),
		"WORKER_PARTS=psp,webhooks", "WEBHOOKS_GROUP="+c.prefix+"webhooks",
		"PSP_URL="+c.provider(), "PSP_API_KEY=sk_test")

	shop := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(shop.Close)
	c.create("webhook-endpoints", fmt.Sprintf(`{"url":%q}`, shop.URL))
	c.create("payments", fmt.Sprintf(`{"amount_minor":100,"currency":"USD","destination_account":%q,
		"payment_method":{"type":"card","token":"tok_visa"}}`, c.Accounts[0].ID))

	topic := c.prefix + "payments"
	b.follow(t,
		step{service: "api", name: payRequest, below: client},
		step{service: "api", name: "commit batch", below: payRequest, link: payRequest},
		step{service: "api", name: "COMMIT", below: "commit batch"},
		step{service: "worker", name: "POST /v1/charges", below: payRequest},
		step{service: "relay", name: "send " + topic, below: payRequest},
		step{service: "consumer", name: "process " + topic, below: payRequest},
		step{service: "worker", name: "process " + topic, below: payRequest},
		step{service: "worker", name: "POST webhook", below: payRequest})
}

// create makes one of these in the client's trace.
func (c *chain) create(these, body string) {
	c.t.Helper()
	a, err := c.send(c.t.Context(), http.MethodPost, "/api/v1/"+these, these, body)
	if err != nil || a.status != http.StatusCreated {
		c.t.Fatalf("create one of %s: %v %+v", these, err, a)
	}
}

func TestCollectorTakesItsConfiguration(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), findCollector(t), "validate", "--config="+collectorConfig).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestCollectorIsTheOneOfCompose(t *testing.T) {
	t.Parallel()
	version, err := exec.CommandContext(t.Context(), findCollector(t), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	compose, err := os.ReadFile("../../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}

	fields := strings.Fields(string(version))
	if image := "image: otel/opentelemetry-collector:" + fields[len(fields)-1] + "\n"; !strings.Contains(string(compose), image) {
		t.Errorf("docker-compose.yml has no %q", image)
	}
}

// listening finds where the receiver listens in the log of a collector that has started.
var listening = regexp.MustCompile(`(?s)Starting HTTP server[^\n]*"endpoint":"([^"]+)".*Everything is ready`)

// startCollector starts one that exports to b, and returns where it receives.
func startCollector(t *testing.T, b *backend) (endpoint string) {
	t.Helper()
	binary := findCollector(t)
	log := filepath.Join(t.TempDir(), "collector.log")
	ready := func() error {
		text, err := os.ReadFile(log)
		if err != nil {
			return err
		}
		m := listening.FindSubmatch(text)
		if m == nil {
			return errors.New("the collector is not ready")
		}
		endpoint = "http://" + string(m[1])
		return nil
	}

	if !testenv.Serve(t, log, ready, binary, "--config="+collectorConfig,
		"--set=receivers.otlp.protocols.http.endpoint=127.0.0.1:0",
		"--set=exporters.otlp_grpc.endpoint="+b.Listener.Addr().String()) {
		t.Fatal("the collector ended")
	}
	return endpoint
}

// findCollector returns the path of the collector, after building it if the one in bin is not of
// this source. What the build needs is downloaded once: without it the tests are skipped.
func findCollector(t *testing.T) string {
	t.Helper()
	path, err := collector()
	if errors.Is(err, errNotDownloaded) {
		testenv.Missing(t, "NO COLLECTOR: no trace is tested through one ("+err.Error()+")")
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var errNotDownloaded = errors.New("its modules cannot be downloaded")

var collector = sync.OnceValues(func() (string, error) {
	const source = "../collector"
	if out, err := exec.Command("go", "list", "-C", source, "-deps", ".").CombinedOutput(); err != nil {
		text := strings.TrimSpace(string(out))
		last := text[strings.LastIndex(text, "\n")+1:]
		return "", fmt.Errorf("%w: %s", errNotDownloaded, last)
	}

	path, err := filepath.Abs("../../bin/otelcol")
	if err != nil {
		return "", err
	}
	// As in the Makefile, so that there is nothing left to build.
	if out, err := exec.Command("go", "build", "-C", source, "-buildvcs=false", "-o", path, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the collector: %w\n%s", err, out)
	}
	return path, nil
})
