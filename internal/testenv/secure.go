package testenv

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/testcontainers/testcontainers-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
)

// Mechanisms are the login mechanisms of a secure broker.
var Mechanisms = []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}

// SecureKafka is a broker for one test. It accepts TLS and logins only, and users may do only
// what they were allowed to.
type SecureKafka struct {
	Brokers  string // separated by commas
	CAFile   string
	password string
}

// StartSecureKafka starts Apache Kafka if TEST_SERVERS is docker, otherwise kfake. The client is a
// superuser's.
func StartSecureKafka(t testing.TB, users ...string) (SecureKafka, *kgo.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()

	s := SecureKafka{
		CAFile:   filepath.Join(t.TempDir(), "ca.pem"),
		password: "secret-" + strings.ToLower(rand.Text()),
	}

	// httptest has a certificate that is its own authority. It is for 127.0.0.1, so Docker must run on
	// this machine.
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(s.CAFile, certificate, 0o600); err != nil {
		t.Fatal(err)
	}

	if os.Getenv("TEST_SERVERS") == "docker" {
		s.startContainer(ctx, t, users, server.TLS.Certificates[0].PrivateKey, certificate)
	} else {
		s.startFake(t, users, server.TLS)
	}

	trust := x509.NewCertPool()
	trust.AddCert(server.Certificate())
	client, err := kgo.NewClient(
		kgo.SeedBrokers(s.Brokers),
		kgo.DialTLSConfig(&tls.Config{RootCAs: trust}),
		kgo.SASL(plain.Auth{User: "admin", Pass: s.password}.AsMechanism()),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)

	if err := retry(ctx, client.Ping); err != nil {
		t.Fatal(err)
	}

	for _, user := range users {
		// A request may name a user once, so each mechanism takes one.
		for _, mechanism := range []kadm.ScramMechanism{kadm.ScramSha256, kadm.ScramSha512} {
			made, err := kadm.NewClient(client).AlterUserSCRAMs(ctx, nil, []kadm.UpsertSCRAM{
				{User: user, Mechanism: mechanism, Iterations: 4096, Password: s.password},
			})
			if err = errors.Join(err, made.Error()); err != nil {
				t.Fatal(err)
			}
		}
	}

	return s, client
}

func (s *SecureKafka) startContainer(
	ctx context.Context, t testing.TB, users []string, key any, certificate []byte,
) {
	t.Helper()
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	keyStore := append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), certificate...)

	logins := "org.apache.kafka.common.security.plain.PlainLoginModule required"
	for _, user := range append(users, "admin") {
		logins += fmt.Sprintf(" user_%s=%q", user, s.password)
	}
	const scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"

	// PLAIN's users are in the configuration; SCRAM's are created by StartSecureKafka.
	c, address, err := runKafka(ctx, os.Getenv,
		testcontainers.WithFiles(testcontainers.ContainerFile{
			Reader: bytes.NewReader(keyStore), ContainerFilePath: "/tmp/server.pem", FileMode: 0o644,
		}),
		testcontainers.WithEnv(map[string]string{
			"KAFKA_LISTENER_SECURITY_PROTOCOL_MAP":                          "CLIENT:SASL_SSL,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
			"KAFKA_LISTENER_NAME_CLIENT_SASL_ENABLED_MECHANISMS":            strings.Join(Mechanisms, ","),
			"KAFKA_LISTENER_NAME_CLIENT_PLAIN_SASL_JAAS_CONFIG":             logins + ";",
			"KAFKA_LISTENER_NAME_CLIENT_SCRAM___SHA___256_SASL_JAAS_CONFIG": scram,
			"KAFKA_LISTENER_NAME_CLIENT_SCRAM___SHA___512_SASL_JAAS_CONFIG": scram,
			"KAFKA_LISTENER_NAME_CLIENT_SSL_KEYSTORE_TYPE":                  "PEM",
			"KAFKA_LISTENER_NAME_CLIENT_SSL_KEYSTORE_LOCATION":              "/tmp/server.pem",
			"KAFKA_AUTHORIZER_CLASS_NAME":                                   "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
			"KAFKA_SUPER_USERS":                                             "User:ANONYMOUS;User:admin", // the node itself, and us
		}))
	if err != nil {
		t.Fatal(err)
	}

	s.Brokers = address
	t.Cleanup(func() {
		if log, err := c.Logs(context.Background()); err == nil && t.Failed() {
			text, _ := io.ReadAll(log)
			t.Logf("log of Kafka:\n%s", text)
		}
		_ = c.Terminate(context.Background(), testcontainers.StopTimeout(0)) // killed: of no value
	})
}

func (s *SecureKafka) startFake(t testing.TB, users []string, config *tls.Config) {
	t.Helper()
	opts := []kfake.Opt{
		kfake.NumBrokers(1), kfake.EnableSASL(), kfake.EnableACLs(),
		kfake.Superuser("PLAIN", "admin", s.password),
		kfake.TLS(&tls.Config{Certificates: config.Certificates}),
	}
	for _, user := range users {
		opts = append(opts, kfake.User("PLAIN", user, s.password))
	}

	cluster, err := kfake.NewCluster(opts...)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(cluster.Close)
	s.Brokers = cluster.ListenAddrs()[0]
}

// Env returns the environment that a program needs to log in as user.
func (s SecureKafka) Env(t testing.TB, mechanism, user string) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(s.password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	return []string{
		"KAFKA_BROKERS=" + s.Brokers, "KAFKA_TLS=on", "KAFKA_CA_FILE=" + s.CAFile,
		"KAFKA_SASL_MECHANISM=" + mechanism,
		"KAFKA_USERNAME=" + user, "KAFKA_PASSWORD_FILE=" + file,
	}
}
