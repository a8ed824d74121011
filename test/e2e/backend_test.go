package e2e

import (
	"bytes"
	"compress/gzip"
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

// backend is where spans and metrics end up: it takes OTLP over HTTP, as the programs send it, and
// over gRPC, as the collector does.
type backend struct {
	*httptest.Server
	mu      sync.Mutex
	spans   map[string][]*trace.Span   // by service
	metrics map[string]map[string]bool // names by service
}

func newBackend(t *testing.T) *backend {
	t.Helper()
	b := &backend{spans: map[string][]*trace.Span{}, metrics: map[string]map[string]bool{}}
	b.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil && r.ProtoMajor == 2 {
			body, err = unframe(w, body)
		}
		if err == nil {
			err = b.take(r.URL.Path, body)
		}
		if err != nil {
			t.Errorf("%s: %v", r.URL.Path, err)
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	}))

	b.Config.Protocols = new(http.Protocols)
	b.Config.Protocols.SetHTTP1(true)
	b.Config.Protocols.SetUnencryptedHTTP2(true)
	b.Start()
	t.Cleanup(b.Close)
	return b
}

// unframe returns the message of a gRPC call and answers it with an empty one. Before each message
// are a byte that says whether it is compressed, and four with its length.
func unframe(w http.ResponseWriter, frame []byte) ([]byte, error) {
	const header = 5
	if len(frame) < header {
		return nil, io.ErrUnexpectedEOF
	}
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	if _, err := w.Write(make([]byte, header)); err != nil {
		return nil, err
	}

	if frame[0] == 0 {
		return frame[header:], nil
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(frame[header:]))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(unzipped)
}

// take keeps what was sent. A message of OTLP's services has the same bytes as the data's own.
func (b *backend) take(path string, body []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()

	switch path {
	case "/v1/traces", "/opentelemetry.proto.collector.trace.v1.TraceService/Export":
		var data trace.TracesData
		if err := proto.Unmarshal(body, &data); err != nil {
			return err
		}
		for _, of := range data.GetResourceSpans() {
			name := service(of.GetResource())
			for _, scope := range of.GetScopeSpans() {
				b.spans[name] = append(b.spans[name], scope.GetSpans()...)
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
			b.metrics[service(of.GetResource())] = names
		}

	default:
		return errors.New("there is no such service")
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

func (b *backend) measured(service, metric string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.metrics[service][metric]
}

// named returns a service's spans of that name.
func (b *backend) named(service, name string) (spans []*trace.Span) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.spans[service] {
		if s.GetName() == name {
			spans = append(spans, s)
		}
	}
	return spans
}

// step is a span that a trace must have, below another one.
type step struct {
	service, name string
	below         string // the name of an earlier step, or client
	link          string // to this step; empty: it has none
}

// client is the step outside, which clientSpan identifies.
const client = "client"

// follow waits for a span of each step, and checks that they are one trace, the client's, with
// nothing outside of it.
func (b *backend) follow(t *testing.T, steps ...step) {
	t.Helper()
	testenv.Eventually(t, time.Minute, func() error {
		for _, s := range steps {
			if len(b.named(s.service, s.name)) == 0 {
				return fmt.Errorf("there is no span %q of %s", s.name, s.service)
			}
		}
		return nil
	})

	ids := map[string]string{client: clientSpan}
	for _, s := range steps {
		for _, span := range b.named(s.service, s.name) {
			ids[s.name] = hex.EncodeToString(span.GetSpanId())
			if got := hex.EncodeToString(span.GetParentSpanId()); got != ids[s.below] {
				t.Errorf("%s of %s is below %s, want %s, %s", s.name, s.service, got, s.below, ids[s.below])
			}

			var links []string
			for _, l := range span.GetLinks() {
				links = append(links, hex.EncodeToString(l.GetSpanId()))
			}
			if s.link == "" && len(links) != 0 || s.link != "" && (len(links) != 1 || links[0] != ids[s.link]) {
				t.Errorf("%s of %s links to %v, want %s %s", s.name, s.service, links, s.link, ids[s.link])
			}
		}
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	for service, spans := range b.spans {
		for _, s := range spans {
			if id := hex.EncodeToString(s.GetTraceId()); id != clientTrace {
				t.Errorf("%s of %s is in the trace %s, want the client's", s.GetName(), service, id)
			}
		}
	}
}
