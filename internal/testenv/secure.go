package testenv

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/testcontainers/testcontainers-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
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

// StartSecureKafka starts Apache Kafka if TEST_SERVERS is docker, otherwise kfake. setup creates
// topics and permissions, as an operator types it: lines of kafka-topics.sh and kafka-acls.sh.
func StartSecureKafka(t testing.TB, users []string, setup string) SecureKafka {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()

	s := SecureKafka{
		CAFile:   filepath.Join(t.TempDir(), "ca.pem"),
		password: "secret-" + strings.ToLower(rand.Text()),
	}

	ca, server := certificates(t)
	if err := os.WriteFile(s.CAFile, ca, 0o600); err != nil {
		t.Fatal(err)
	}

	if os.Getenv("TEST_SERVERS") == "docker" {
		s.startContainer(ctx, t, users, server)
	} else {
		s.startFake(t, users, server)
	}

	// As admin, create the users' SCRAM credentials, topics and permissions.
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	client, err := kgo.NewClient(
		kgo.SeedBrokers(s.Brokers),
		kgo.DialTLSConfig(&tls.Config{RootCAs: pool}),
		kgo.SASL(plain.Auth{User: "admin", Pass: s.password}.AsMechanism()),
	)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()

	if err := retry(ctx, client.Ping); err != nil {
		t.Fatal(err)
	}

	admin := kadm.NewClient(client)
	for _, user := range users {
		// A request may name a user once, so each mechanism takes one.
		for _, mechanism := range []kadm.ScramMechanism{kadm.ScramSha256, kadm.ScramSha512} {
			made, err := admin.AlterUserSCRAMs(ctx, nil, []kadm.UpsertSCRAM{
				{User: user, Mechanism: mechanism, Iterations: 4096, Password: s.password},
			})
			if err = errors.Join(err, made.Error()); err != nil {
				t.Fatal(err)
			}
		}
	}

	// A backslash continues a line, as in a shell.
	for line := range strings.Lines(strings.ReplaceAll(setup, "\\\n", " ")) {
		if err := run(ctx, admin, strings.Fields(line)); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}

	return s
}

// run does what a command line of Kafka's own tools would do.
func run(ctx context.Context, admin *kadm.Client, line []string) error {
	// A flag may be repeated, as --operation is.
	flags := map[string][]string{}
	for i := 0; i+1 < len(line); i++ {
		if name, is := strings.CutPrefix(line[i], "--"); is {
			flags[name] = append(flags[name], line[i+1])
		}
	}

	switch {
	case len(line) == 0:
		return nil
	case line[0] == "kafka-topics.sh":
		partitions, err := strconv.Atoi(flags["partitions"][0])
		if err == nil {
			_, err = admin.CreateTopic(ctx, int32(partitions), 1, nil, flags["topic"][0])
		}
		return err
	case line[0] == "kafka-acls.sh":
		var operations []kadm.ACLOperation
		for _, name := range flags["operation"] {
			operation, err := kmsg.ParseACLOperation(name)
			if err != nil {
				return err
			}
			operations = append(operations, operation)
		}

		acls := kadm.NewACLs().Allow(flags["allow-principal"]...).AllowHosts("*").
			ResourcePatternType(kadm.ACLPatternLiteral).Operations(operations...).
			MaybeTopics(flags["topic"]...).MaybeGroups(flags["group"]...).
			MaybeTransactionalIDs(flags["transactional-id"]...)

		made, err := admin.CreateACLs(ctx, acls)
		for _, one := range made {
			err = errors.Join(err, one.Err)
		}
		return err
	}
	return errors.New("unknown")
}

func (s *SecureKafka) startContainer(
	ctx context.Context, t testing.TB, users []string, server []byte,
) {
	t.Helper()
	logins := "org.apache.kafka.common.security.plain.PlainLoginModule required"
	for _, user := range append(users, "admin") {
		logins += fmt.Sprintf(" user_%s=%q", user, s.password)
	}
	const scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"

	// PLAIN's users are in the configuration; SCRAM's are created by StartSecureKafka.
	c, address, err := runKafka(ctx, cmp.Or(os.Getenv("TEST_KAFKA_IMAGE"), "apache/kafka:4.3.1"),
		testcontainers.WithFiles(testcontainers.ContainerFile{
			Reader: bytes.NewReader(server), ContainerFilePath: "/tmp/server.pem", FileMode: 0o644,
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

func (s *SecureKafka) startFake(t testing.TB, users []string, server []byte) {
	t.Helper()
	pair, err := tls.X509KeyPair(server, server)
	if err != nil {
		t.Fatal(err)
	}

	opts := []kfake.Opt{
		kfake.NumBrokers(1), kfake.EnableSASL(), kfake.EnableACLs(),
		kfake.Superuser("PLAIN", "admin", s.password),
		kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}}),
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

// certificates makes an authority, and a server's key and a certificate signed by it, all in PEM.
func certificates(t testing.TB) (ca, server []byte) {
	t.Helper()
	fatal := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}

	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal(err)

	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}

	caDER, err := x509.CreateCertificate(rand.Reader, authority, authority, &caKey.PublicKey, caKey)
	fatal(err)

	// Clients reach the server by the loopback addresses and, in a container, by the engine's host.
	host := cmp.Or(os.Getenv("TESTCONTAINERS_HOST_OVERRIDE"), "localhost")

	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kafka"},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, DNSNames: []string{host},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	if ip := net.ParseIP(host); ip != nil {
		leaf.DNSNames, leaf.IPAddresses = nil, append(leaf.IPAddresses, ip)
	}

	der, err := x509.CreateCertificate(rand.Reader, leaf, authority, &key.PublicKey, caKey)
	fatal(err)

	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	fatal(err)

	ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})
	server = append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	return ca, server
}
