package kafka

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/relay"
)

// BenchmarkCodecs compresses what one partition gets of a full batch of payments: about 200 records.
// Ids are random, as in the service; the rest repeats from event to event.
func BenchmarkCodecs(b *testing.B) {
	const payment = `{"id":"%s","status":"completed","decline_code":"","amount_minor":%d,"currency":"USD",` +
		`"source_account":"%s","destination_account":"%s","description":"order","metadata":{},` +
		`"client_reference":"","processed_at":"2026-03-01T12:00:00.%03dZ"}`
	version, batch := int64(1), make([]relay.Message, 200)
	for i := range batch {
		id := uuid.NewString()
		batch[i] = relay.Message{
			EventID: uuid.New(), AggregateType: "payments", AggregateID: id, Type: "payment.completed",
			AggregateVersion: &version, CreatedAt: time.Unix(1_800_000_000, int64(i)*1000),
			Payload: fmt.Appendf(nil, payment, id, 100+i, uuid.New(), uuid.New(), i),
			Headers: fmt.Appendf(nil, `{"traceparent": "00-%x-%x-01"}`, uuid.New(), uuid.New().NodeID()),
		}
	}

	var e encoder
	var plain []byte
	for _, r := range e.records(Producer{TopicPrefix: "oncepay.", Source: "/oncepay"}, batch) {
		plain = append(append(plain, r.Key...), r.Value...)
		for _, h := range r.Headers {
			plain = append(append(plain, h.Key...), h.Value...)
		}
	}

	for name, codec := range map[string]kgo.CompressionCodec{
		"gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	} {
		b.Run(name, func(b *testing.B) {
			c, err := kgo.DefaultCompressor(codec)
			if err != nil {
				b.Fatal(err)
			}

			var dst bytes.Buffer
			var packed []byte
			for b.Loop() {
				dst.Reset()
				packed, _ = c.Compress(&dst, plain)
			}
			events := float64(len(batch))
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/events, "ns/event")
			b.ReportMetric(float64(len(packed))/events, "bytes/event")
			b.ReportMetric(float64(len(plain))/events, "plain-bytes/event")
		})
	}
}
