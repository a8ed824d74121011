package config

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// together returns what is wrong with variables that are right each for itself.
func (k Kafka) together() (problems []error) {
	login := k.Username != "" || k.PasswordFile != ""
	switch {
	case k.Mechanism != "" && (k.Username == "" || k.PasswordFile == ""):
		problems = append(problems, errors.New("KAFKA_SASL_MECHANISM needs KAFKA_USERNAME and KAFKA_PASSWORD_FILE"))
	case k.Mechanism == "" && login:
		problems = append(problems, errors.New("KAFKA_USERNAME and KAFKA_PASSWORD_FILE need KAFKA_SASL_MECHANISM"))
	case k.Mechanism == "PLAIN" && k.TLS != "on":
		problems = append(problems, errors.New("KAFKA_SASL_MECHANISM=PLAIN needs KAFKA_TLS=on: it sends the password as it is"))
	}
	if k.CAFile != "" && k.TLS != "on" {
		problems = append(problems, errors.New("KAFKA_CA_FILE needs KAFKA_TLS=on"))
	}
	return problems
}

// Options returns how to connect and log in, for every client of the program.
func (k Kafka) Options() (opts []kgo.Opt, err error) {
	if k.TLS == "on" {
		conn := &tls.Config{MinVersion: tls.VersionTLS12}
		if k.CAFile != "" {
			if conn.RootCAs, err = certificates(k.CAFile); err != nil {
				return nil, err
			}
		}
		opts = append(opts, kgo.DialTLSConfig(conn))
	}
	if k.Mechanism != "" {
		opts = append(opts, kgo.SASL(k.mechanism()))
	}
	return opts, nil
}

// mechanism reads the password for each connection, so that it can be changed while the program runs.
func (k Kafka) mechanism() sasl.Mechanism {
	auth := func(context.Context) (scram.Auth, error) {
		password, err := secret(k.PasswordFile)
		return scram.Auth{User: k.Username, Pass: password}, err
	}
	switch k.Mechanism {
	case "SCRAM-SHA-256":
		return scram.Sha256(auth)
	case "SCRAM-SHA-512":
		return scram.Sha512(auth)
	}
	return plain.Plain(func(ctx context.Context) (plain.Auth, error) {
		a, err := auth(ctx)
		return plain.Auth{User: a.User, Pass: a.Pass}, err
	})
}

// Options returns what a client of the relay needs, with its compression.
func (r Relay) Options() ([]kgo.Opt, error) {
	opts, err := r.Kafka.Options()
	return append(opts, kgo.ProducerBatchCompression(codecs[r.Compression])), err
}

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func certificates(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, errors.New("KAFKA_CA_FILE cannot be read")
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("KAFKA_CA_FILE has no certificate in PEM")
	}
	return pool, nil
}

// secret returns what a file holds, without the line's end that editors leave.
func secret(file string) (string, error) {
	text, err := os.ReadFile(file)
	text = bytes.TrimRight(text, "\r\n")
	if err != nil || len(text) == 0 {
		return "", errors.New("KAFKA_PASSWORD_FILE cannot be read, or is empty")
	}
	return string(text), nil
}
