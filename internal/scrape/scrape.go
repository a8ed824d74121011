// Package scrape reads what a program shows at /metrics.
package scrape

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// maxBytes is a hundred times what a program shows. An address may be somebody else's.
const maxBytes = 8 << 20

// No proxy: the programs are on this machine or in its network.
var client = &http.Client{Transport: &http.Transport{}}

// Metrics returns what the program whose ADMIN_ADDR is address shows, by name. only are the
// beginnings of the names that are wanted; without any, all are.
func Metrics(ctx context.Context, address string, only ...string) (map[string]*dto.MetricFamily, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	request.Header.Set("Accept", string(expfmt.NewFormat(expfmt.TypeTextPlain)))

	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	defer response.Body.Close()

	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read metrics: %w", errors.New("it answered "+response.Status))
	}
	text := io.LimitReader(response.Body, maxBytes)
	if len(only) > 0 {
		text = filter(text, only)
	}
	return Parse(text)
}

// Parse returns the metrics of a text, by name.
func Parse(text io.Reader) (map[string]*dto.MetricFamily, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", errors.New("it does not answer with metrics"))
	}
	return families, nil
}

// filter keeps the lines of these metrics: parsing takes far longer.
func filter(text io.Reader, only []string) io.Reader {
	var wanted bytes.Buffer
	for lines := bufio.NewScanner(text); lines.Scan(); {
		name := strings.TrimPrefix(lines.Text(), "# TYPE ")
		if slices.ContainsFunc(only, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			wanted.WriteString(lines.Text())
			wanted.WriteByte('\n')
		}
	}
	return &wanted
}
