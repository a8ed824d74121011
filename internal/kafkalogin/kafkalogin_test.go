package kafkalogin_test

import (
	"bytes"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/kafkalogin"
)

// TestCompression: each name is its codec, also for clients that are made side by side, as the relay's are.
func TestCompression(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]kgo.CompressionCodecType{
		"none": kgo.CodecNone, "gzip": kgo.CodecGzip, "snappy": kgo.CodecSnappy, "lz4": kgo.CodecLz4, "zstd": kgo.CodecZstd,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			option := kafkalogin.Compression(name)
			var clients sync.WaitGroup
			for range 4 {
				clients.Go(func() {
					client, err := kgo.NewClient(kgo.SeedBrokers("127.0.0.1:1"), option)
					if err != nil {
						t.Error(err)
						return
					}
					defer client.Close()
					got := kgo.CodecNone
					if c, is := client.OptValue(kgo.WithCompressor).(kgo.Compressor); is && c != nil {
						_, got = c.Compress(new(bytes.Buffer), bytes.Repeat([]byte("payment "), 100))
					}
					if got != want {
						t.Errorf("codec %d, want %d", got, want)
					}
				})
			}
			clients.Wait()
		})
	}
}
