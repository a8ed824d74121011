// Package observe runs a real Prometheus for tests: whether an expression parses, and finds the
// series it is about, is for Prometheus to say.
package observe

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/testenv"
)

// Find returns the path of prometheus or promtool. Without it the test is skipped, in CI it fails.
func Find(t *testing.T, tool string) string {
	t.Helper()
	return testenv.Tool(t, "NO PROMETHEUS: no rule and no dashboard is tested (apt-get install prometheus)", tool)
}

// Prometheus is one that scrapes every second, until the test ends.
type Prometheus struct {
	URL string
}

// Start starts one. targets says where the metrics of each job are: "api" → "127.0.0.1:9090", several
// instances separated by commas. rules are the texts of rule files, evaluated every second.
func Start(t *testing.T, targets map[string]string, rules ...string) *Prometheus {
	t.Helper()
	binary := Find(t, "prometheus")
	dir := t.TempDir()

	for i, text := range rules {
		write(t, filepath.Join(dir, fmt.Sprintf("rules-%d.yaml", i)), text)
	}
	write(t, filepath.Join(dir, "prometheus.yaml"), configuration(targets))

	// Another program may take the free port before Prometheus has it.
	for range 3 {
		if p := start(t, binary, dir); p != nil {
			return p
		}
	}
	t.Fatal("Prometheus did not start")
	return nil
}

func configuration(targets map[string]string) string {
	var text strings.Builder
	text.WriteString("global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n" +
		"rule_files: [rules-*.yaml]\nscrape_configs:\n")
	for job, addresses := range targets {
		fmt.Fprintf(&text, "- {job_name: %q, static_configs: [{targets: [%s]}]}\n", job, addresses)
	}
	return text.String()
}

// start returns nil if Prometheus ended before it was ready.
func start(t *testing.T, binary, dir string) *Prometheus {
	t.Helper()
	address, err := process.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}

	p := &Prometheus{URL: "http://" + address}
	ready := func() error {
		_, err := get(p.URL + "/-/ready")
		return err
	}
	if !testenv.Serve(t, filepath.Join(dir, "log"), ready, binary,
		"--config.file="+filepath.Join(dir, "prometheus.yaml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address) {
		return nil
	}
	return p
}

// Sample is one element of what an expression returns.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// Query evaluates an expression now. That of a range or a string is an error.
func (p *Prometheus) Query(expression string) ([]Sample, error) {
	body, err := get(p.URL + "/api/v1/query?query=" + url.QueryEscape(expression))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", expression, err)
	}
	var answer struct {
		Data struct {
			ResultType string
			Result     json.RawMessage
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, err
	}

	type point [2]any // time and value
	var elements []struct {
		Metric map[string]string
		Value  point
	}
	switch answer.Data.ResultType {
	case "vector":
		err = json.Unmarshal(answer.Data.Result, &elements)
	case "scalar":
		elements = append(elements, struct {
			Metric map[string]string
			Value  point
		}{})
		err = json.Unmarshal(answer.Data.Result, &elements[0].Value)
	default:
		err = fmt.Errorf("%s returns a %s", expression, answer.Data.ResultType)
	}
	if err != nil {
		return nil, err
	}

	samples := make([]Sample, len(elements))
	for i, e := range elements {
		text, _ := e.Value[1].(string)
		if samples[i].Value, err = strconv.ParseFloat(text, 64); err != nil {
			return nil, err
		}
		samples[i].Labels = e.Metric
	}
	return samples, nil
}

func get(url string) ([]byte, error) {
	response, err := http.Get(url)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()

	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status + ": " + strings.TrimSpace(string(body)))
	}
	return body, err
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
