// Package kafkalogin turns the configuration of Kafka into options of its client. It is separate
// from config so that the API, which talks to no broker, does not link the client.
package kafkalogin

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/oncepay/oncepay/internal/config"
)

// Options returns the options with which every client of a program connects and logs in.
func Options(k config.Kafka) (opts []kgo.Opt, err error) {
	conn, err := k.TLSConfig()
	if err != nil {
		return nil, err
	}

	if conn != nil {
		opts = append(opts, kgo.DialTLSConfig(conn))
	}

	if k.Mechanism != "" {
		opts = append(opts, kgo.SASL(mechanism(k)))
	}
	return opts, nil
}

// mechanism reads the password for each connection, so it can change while the program runs.
func mechanism(k config.Kafka) sasl.Mechanism {
	auth := func(context.Context) (scram.Auth, error) {
		password, err := k.Password()
		return scram.Auth{User: k.Username, Pass: password}, err
	}

	switch k.Mechanism {
	case "SCRAM-SHA-256":
		return scram.Sha256(auth)
	case "SCRAM-SHA-512":
		return scram.Sha512(auth)
	}

	// PLAIN, the only other mechanism that config accepts.
	return plain.Plain(func(ctx context.Context) (plain.Auth, error) {
		a, err := auth(ctx)
		return plain.Auth{User: a.User, Pass: a.Pass}, err
	})
}

// Compression returns the codec that compresses the relay's records.
func Compression(name string) kgo.Opt {
	// Made once: clients that are made at the same time, each with a compressor of its own, write to
	// the codecs of the option that they share (kgo.DefaultCompressor).
	compressor, err := kgo.DefaultCompressor(codecs[name])
	if err != nil || compressor == nil {
		return kgo.ProducerBatchCompression() // none
	}
	return kgo.WithCompressor(compressor)
}

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}
