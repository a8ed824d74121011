package fakepsp_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/fakepsp"
)

// BenchmarkCharges charges over HTTP from 64 clients, with keys of their own.
func BenchmarkCharges(b *testing.B) {
	for name, f := range map[string]fakepsp.Faults{
		"healthy": {},
		"faults": {LoseReply: 0.05, ErrorBefore: 0.025, ErrorAfter: 0.025,
			WebhookDouble: 0.5, WebhookShuffle: 0.5},
		"50ms": {Latency: fakepsp.Duration(50 * time.Millisecond)},
	} {
		for _, webhooks := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s,webhooks=%t", name, webhooks), func(b *testing.B) {
				o := fakepsp.Options{Faults: f}
				if webhooks {
					receiver := httptest.NewServer(http.HandlerFunc(
						func(_ http.ResponseWriter, r *http.Request) { drain(r.Body) }))
					b.Cleanup(receiver.Close)
					o.WebhookURL, o.WebhookSecret = receiver.URL, secret
				}
				chargeOverHTTP(b, open(b, b.TempDir(), o))
			})
		}
	}
}

func chargeOverHTTP(b *testing.B, p *fakepsp.PSP) {
	server := httptest.NewServer(p)
	b.Cleanup(server.Close)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	b.Cleanup(client.CloseIdleConnections)

	var n atomic.Int64
	b.SetParallelism(32) // times two cores
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			key := fmt.Sprint(n.Add(1))
			r, err := http.NewRequest("POST", server.URL+"/v1/charges",
				strings.NewReader(order(2500, "tok_visa", key)))
			if err != nil {
				b.Error(err)
				return
			}
			r.GetBody = nil // or the transport would repeat what has lost its reply
			r.Header.Set("Authorization", "Bearer "+apiKey)
			r.Header.Set("Idempotency-Key", key)

			if answer, err := client.Do(r); err == nil {
				drain(answer.Body)
				answer.Body.Close()
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "charges/s")
}

func drain(body io.Reader) { _, _ = io.Copy(io.Discard, body) }
