package testenv

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
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
	tcexec "github.com/testcontainers/testcontainers-go/exec"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Mechanisms are how a secure broker lets its users log in.
var Mechanisms = []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}

// SecureKafka is a broker of a test's own, for TLS and logins only. A user may do what it was allowed to.
type SecureKafka struct {
	Brokers  string // separated by commas
	CAFile   string
	password string
}

// StartSecureKafka starts Apache Kafka where TEST_SERVERS is docker, else kfake. setup is lines for the shell that make topics
// and allow things, as an operator types them: kafka-topics.sh and kafka-acls.sh with --bootstrap-server $KAFKA.
func StartSecureKafka(t testing.TB, users []string, setup string) SecureKafka {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	s := SecureKafka{CAFile: filepath.Join(t.TempDir(), "ca.pem"), password: "secret-" + strings.ToLower(rand.Text())}
	ca, server := certificates(t)
	if err := os.WriteFile(s.CAFile, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	setup = strings.ReplaceAll(setup, "\\\n", " ")
	if os.Getenv("TEST_SERVERS") != "docker" {
		s.startFake(t, users, setup, server)
		return s
	}

	var plain, scram strings.Builder
	plain.WriteString("org.apache.kafka.common.security.plain.PlainLoginModule required")
	for _, user := range users {
		fmt.Fprintf(&plain, " user_%s=%q", user, s.password)
		for _, mechanism := range Mechanisms[1:] { // one in a request
			fmt.Fprintf(&scram, "kafka-configs.sh --bootstrap-server $KAFKA --alter --entity-type users --entity-name %s"+
				" --add-config '%s=[password=%s]'\n", user, mechanism, s.password)
		}
	}
	c, address, err := runKafka(ctx, cmp.Or(os.Getenv("TEST_KAFKA_IMAGE"), "apache/kafka:4.3.1"),
		testcontainers.WithFiles(testcontainers.ContainerFile{Reader: strings.NewReader(string(server)), ContainerFilePath: "/tmp/server.pem", FileMode: 0o644}),
		testcontainers.WithEnv(map[string]string{
			"KAFKA_LISTENER_SECURITY_PROTOCOL_MAP":                          "CLIENT:SASL_SSL,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
			"KAFKA_LISTENER_NAME_CLIENT_SASL_ENABLED_MECHANISMS":            strings.Join(Mechanisms, ","),
			"KAFKA_LISTENER_NAME_CLIENT_PLAIN_SASL_JAAS_CONFIG":             plain.String() + ";",
			"KAFKA_LISTENER_NAME_CLIENT_SCRAM___SHA___256_SASL_JAAS_CONFIG": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
			"KAFKA_LISTENER_NAME_CLIENT_SCRAM___SHA___512_SASL_JAAS_CONFIG": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
			"KAFKA_LISTENER_NAME_CLIENT_SSL_KEYSTORE_TYPE":                  "PEM",
			"KAFKA_LISTENER_NAME_CLIENT_SSL_KEYSTORE_LOCATION":              "/tmp/server.pem",
			"KAFKA_AUTHORIZER_CLASS_NAME":                                   "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
			"KAFKA_SUPER_USERS":                                             "User:ANONYMOUS", // who comes from inside
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Terminate(context.Background(), testcontainers.StopTimeout(0)) })
	script := "set -e; export KAFKA=localhost:9094 PATH=$PATH:/opt/kafka/bin KAFKA_HEAP_OPTS=-Xmx128m\n" +
		"until kafka-broker-api-versions.sh --bootstrap-server $KAFKA >/dev/null 2>&1; do :; done\n" + scram.String() + setup
	code, out, err := c.Exec(ctx, []string{"bash", "-c", script}, tcexec.Multiplexed())
	if err != nil {
		t.Fatal(err)
	}
	if text, _ := io.ReadAll(out); code != 0 {
		t.Fatalf("set up Kafka: %s", text)
	}
	s.Brokers = address
	return s
}

// startFake reads of the setup what the fake broker takes as options.
func (s *SecureKafka) startFake(t testing.TB, users []string, setup string, server []byte) {
	t.Helper()
	pair, err := tls.X509KeyPair(server, server)
	if err != nil {
		t.Fatal(err)
	}
	opts := []kfake.Opt{kfake.NumBrokers(1), kfake.EnableSASL(), kfake.EnableACLs(), kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}})}
	allowed := map[string][]kfake.ACL{}
	for line := range strings.Lines(setup) {
		words := strings.Fields(line)
		flags := map[string][]string{}
		for i := 0; i+1 < len(words); i++ {
			if name, is := strings.CutPrefix(words[i], "--"); is {
				flags[name] = append(flags[name], words[i+1])
			}
		}
		switch {
		case len(words) == 0:
		case words[0] == "kafka-topics.sh":
			partitions, err := strconv.Atoi(flags["partitions"][0])
			if err != nil {
				t.Fatal(err)
			}
			opts = append(opts, kfake.SeedTopics(int32(partitions), flags["topic"]...))
		case words[0] == "kafka-acls.sh":
			user := strings.TrimPrefix(flags["allow-principal"][0], "User:")
			for _, operation := range flags["operation"] {
				var op kmsg.ACLOperation
				if err := op.UnmarshalText([]byte(operation)); err != nil {
					t.Fatal(err)
				}
				for name, resource := range map[string]kmsg.ACLResourceType{
					"topic": kmsg.ACLResourceTypeTopic, "group": kmsg.ACLResourceTypeGroup, "transactional-id": kmsg.ACLResourceTypeTransactionalId,
				} {
					for _, value := range flags[name] {
						allowed[user] = append(allowed[user], kfake.ACL{Resource: resource, Name: value,
							Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: op, Allow: true})
					}
				}
			}
		default:
			t.Fatalf("unknown: %s", line)
		}
	}
	for _, user := range users {
		for _, mechanism := range Mechanisms {
			opts = append(opts, kfake.User(mechanism, user, s.password, allowed[user]...))
		}
	}
	cluster, err := kfake.NewCluster(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	s.Brokers = strings.Join(cluster.ListenAddrs(), ",")
}

// Env returns what a program needs to log in as user.
func (s SecureKafka) Env(t testing.TB, mechanism, user string) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(s.password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"KAFKA_BROKERS=" + s.Brokers, "KAFKA_TLS=on", "KAFKA_CA_FILE=" + s.CAFile,
		"KAFKA_SASL_MECHANISM=" + mechanism, "KAFKA_USERNAME=" + user, "KAFKA_PASSWORD_FILE=" + file}
}

// certificates makes an authority, and a server's key and certificate that it signed, all in PEM.
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
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	caDER, err := x509.CreateCertificate(rand.Reader, authority, authority, &caKey.PublicKey, caKey)
	fatal(err)
	host := cmp.Or(os.Getenv("TESTCONTAINERS_HOST_OVERRIDE"), "localhost")
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, DNSNames: []string{host}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}}
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
