package testenv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/testcontainers/testcontainers-go"
)

func postgresContainer(ctx context.Context, getenv func(string) string) (Server, error) {
	cmd := []string{"postgres"}
	for name, value := range settings {
		cmd = append(cmd, "-c", name+"="+value)
	}

	image := cmp.Or(getenv("TEST_POSTGRES_IMAGE"), "postgres:17")
	c, err := testcontainers.Run(ctx, image,
		testcontainers.WithEnv(map[string]string{"POSTGRES_HOST_AUTH_METHOD": "trust"}),
		testcontainers.WithCmd(cmd...),
		testcontainers.WithExposedPorts("5432/tcp"))
	if err != nil {
		return Server{}, errors.Join(err, testcontainers.TerminateContainer(c))
	}

	address, err := c.PortEndpoint(ctx, "5432/tcp", "")
	if err != nil {
		return Server{}, errors.Join(err, testcontainers.TerminateContainer(c))
	}
	return Server{
		Address: "postgres://postgres:postgres@" + address + "/postgres?sslmode=disable",
		Name:    "container of " + image,
		stop:    terminate(c),
	}, nil
}

// kafkaContainer starts one node. The broker tells clients its advertised address, so the host's
// port must be known before the start. The node itself cannot reach that address from inside and
// uses a listener of its own.
func kafkaContainer(ctx context.Context, getenv func(string) string) (Server, error) {
	c, address, err := runKafka(ctx, getenv)
	if err != nil {
		return Server{}, err
	}
	return Server{Address: address, Name: "container of " + c.Image, stop: terminate(c)}, nil
}

func runKafka(
	ctx context.Context, getenv func(string) string, more ...testcontainers.ContainerCustomizer,
) (c *testcontainers.DockerContainer, address string, err error) {
	image := cmp.Or(getenv("TEST_KAFKA_IMAGE"), "apache/kafka:4.3.1")
	address, port, err := freeAddress(ctx)
	if err != nil {
		return nil, "", err
	}

	options := []testcontainers.ContainerCustomizer{
		testcontainers.WithEnv(map[string]string{
			"KAFKA_NODE_ID":                                  "1",
			"KAFKA_PROCESS_ROLES":                            "broker,controller",
			"KAFKA_LISTENERS":                                "CLIENT://:9092,INTERNAL://localhost:9094,CONTROLLER://localhost:9093",
			"KAFKA_ADVERTISED_LISTENERS":                     "CLIENT://" + address + ",INTERNAL://localhost:9094",
			"KAFKA_LISTENER_SECURITY_PROTOCOL_MAP":           "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
			"KAFKA_INTER_BROKER_LISTENER_NAME":               "INTERNAL",
			"KAFKA_CONTROLLER_LISTENER_NAMES":                "CONTROLLER",
			"KAFKA_CONTROLLER_QUORUM_VOTERS":                 "1@localhost:9093",
			"KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR":         "1",
			"KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
			"KAFKA_TRANSACTION_STATE_LOG_MIN_ISR":            "1",
			"KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS":         "0",
			// As with the embedded broker, topics are created on request, not by using their names.
			"KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
		}),
		testcontainers.WithExposedPorts("9092/tcp"),
		testcontainers.WithHostConfigModifier(func(c *container.HostConfig) {
			// The port that the broker advertises.
			c.PortBindings = network.PortMap{network.MustParsePort("9092/tcp"): {{HostPort: port}}}
		}),
	}

	if c, err = testcontainers.Run(ctx, image, append(options, more...)...); err != nil {
		return nil, "", errors.Join(err, testcontainers.TerminateContainer(c))
	}
	return c, address, nil
}

// freeAddress finds a port that is free on this host. For an engine on another host it is a good
// guess.
func freeAddress(ctx context.Context) (address, port string, err error) {
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return "", "", fmt.Errorf("find Docker: %w", err)
	}
	defer provider.Close()

	// Clients need the engine's host, which is this one unless Docker is remote.
	host, err := provider.DaemonHost(ctx)
	if err != nil {
		return "", "", fmt.Errorf("find Docker's host: %w", err)
	}
	if host == "localhost" {
		host = "127.0.0.1" // which the certificate of a secure broker names
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()

	port = strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	return net.JoinHostPort(host, port), port, nil
}

func terminate(c testcontainers.Container) func(context.Context) error {
	return func(ctx context.Context) error {
		return c.Terminate(ctx, testcontainers.StopTimeout(0)) // killed: it holds nothing of value
	}
}
