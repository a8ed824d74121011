package config

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
)

// together returns what is wrong with variables that are right each for itself.
func (k Kafka) together() (problems []error) {
	// A login needs all three. Half of one would not log in.
	login := k.Username != "" || k.PasswordFile != ""
	switch {
	case k.Mechanism != "" && (k.Username == "" || k.PasswordFile == ""):
		problems = append(problems, errors.New("KAFKA_SASL_MECHANISM needs KAFKA_USERNAME and KAFKA_PASSWORD_FILE"))
	case k.Mechanism == "" && login:
		problems = append(problems, errors.New("KAFKA_USERNAME and KAFKA_PASSWORD_FILE need KAFKA_SASL_MECHANISM"))
	case k.Mechanism == "PLAIN" && k.TLS != "on":
		problems = append(problems, errors.New("KAFKA_SASL_MECHANISM=PLAIN needs KAFKA_TLS=on: it sends the password in plain text"))
	}

	if k.CAFile != "" && k.TLS != "on" {
		problems = append(problems, errors.New("KAFKA_CA_FILE needs KAFKA_TLS=on"))
	}
	return problems
}

// TLSConfig returns how to reach the brokers over TLS; nil: without it.
func (k Kafka) TLSConfig() (conn *tls.Config, err error) {
	if k.TLS != "on" {
		return nil, nil
	}

	conn = &tls.Config{MinVersion: tls.VersionTLS12}
	if k.CAFile != "" {
		conn.RootCAs, err = certificates(k.CAFile)
	}
	return conn, err
}

// Password reads the password from its file.
func (k Kafka) Password() (string, error) { return secret(k.PasswordFile) }

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
