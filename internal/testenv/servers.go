package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/testcontainers/testcontainers-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/embedded"
)

// Server is a running Postgres or broker.
type Server struct {
	Address string // Postgres: the superuser's URL; Kafka: addresses, separated by commas
	Name    string // what it is, with its version and where it came from
	stop    func(context.Context) error
}

// Stop stops the server if this package started it.
func (s Server) Stop(ctx context.Context) error {
	if s.stop == nil {
		return nil
	}
	return s.stop(ctx)
}

// startTimeout includes what may have to be downloaded.
const (
	startTimeout = 3 * time.Minute
	findTimeout  = 4 * time.Second // for a server that was named, and so should be running
)

// settings trade safety against a power failure, which no test survives anyway, for speed.
// Commits stay real.
var settings = map[string]string{
	"fsync": "off", "full_page_writes": "off",
	"max_connections": "300", "max_prepared_transactions": "10",
}

// StartPostgres finds or starts a Postgres by the rules of the package comment. The caller
// stops it.
func StartPostgres(ctx context.Context, getenv func(string) string) (s Server, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	switch {
	case getenv("TEST_DATABASE_URL") != "":
		s = Server{Address: getenv("TEST_DATABASE_URL"), Name: "the one of TEST_DATABASE_URL"}
		ctx, cancel = context.WithTimeout(ctx, findTimeout)
		defer cancel()
	case getenv("TEST_SERVERS") == "docker":
		s, err = postgresContainer(ctx, getenv("TEST_POSTGRES_IMAGE"))
	case getenv("TEST_SERVERS") == "":
		s, err = embeddedPostgres(ctx, getenv("EMBEDDED_POSTGRES") == "download")
	default:
		err = fmt.Errorf("TEST_SERVERS is %q, must be docker or empty", getenv("TEST_SERVERS"))
	}
	if err != nil {
		return Server{}, fmt.Errorf("start Postgres for tests: %w", err)
	}

	// A container accepts connections before its server is ready.
	version, err := serverVersion(ctx, s.Address)
	if err != nil {
		return Server{}, errors.Join(
			fmt.Errorf("reach Postgres for tests (%s): %w", s.Name, err),
			s.Stop(context.WithoutCancel(ctx)))
	}

	s.Name = "Postgres " + version + ", " + s.Name
	return s, nil
}

func embeddedPostgres(ctx context.Context, download bool) (Server, error) {
	p, err := embedded.StartPostgres(ctx, embedded.PostgresOptions{
		Settings: settings, Download: download,
	})
	if err != nil {
		return Server{}, err
	}

	return Server{Address: p.URL("postgres", "postgres"), Name: p.Origin(), stop: p.Stop}, nil
}

// serverVersion waits until a server that was just started answers, and returns its version.
func serverVersion(ctx context.Context, url string) (version string, err error) {
	err = retry(ctx, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		defer conn.Close(context.WithoutCancel(ctx))

		return conn.QueryRow(ctx, "SELECT split_part(current_setting('server_version'), ' ', 1)").Scan(&version)
	})
	return version, err
}

// StartBroker finds or starts a Kafka by the rules of the package comment. The caller stops it.
func StartBroker(ctx context.Context, getenv func(string) string) (s Server, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	switch {
	case getenv("TEST_KAFKA_BROKERS") != "":
		s = Server{Address: getenv("TEST_KAFKA_BROKERS"), Name: "the one of TEST_KAFKA_BROKERS"}
		ctx, cancel = context.WithTimeout(ctx, findTimeout)
		defer cancel()
	case getenv("TEST_SERVERS") == "docker":
		s, err = kafkaContainer(ctx, getenv("TEST_KAFKA_IMAGE"))
	case getenv("TEST_SERVERS") == "":
		s, err = embeddedKafka(ctx)
	default:
		err = fmt.Errorf("TEST_SERVERS is %q, must be docker or empty", getenv("TEST_SERVERS"))
	}
	if err != nil {
		return Server{}, fmt.Errorf("start Kafka for tests: %w", err)
	}

	if err := pingKafka(ctx, strings.Split(s.Address, ",")); err != nil {
		return Server{}, errors.Join(
			fmt.Errorf("reach Kafka for tests (%s): %w", s.Name, err),
			s.Stop(context.WithoutCancel(ctx)))
	}

	s.Name = "Kafka, " + s.Name
	return s, nil
}

func embeddedKafka(ctx context.Context) (Server, error) {
	k, err := embedded.StartKafka(ctx, embedded.KafkaOptions{})
	if err != nil {
		return Server{}, err
	}

	stop := func(context.Context) error { k.Stop(); return nil }

	return Server{Address: strings.Join(k.Brokers(), ","), Name: k.Origin(), stop: stop}, nil
}

func pingKafka(ctx context.Context, brokers []string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return err
	}
	defer client.Close()

	return retry(ctx, client.Ping)
}

// retry repeats attempt until it succeeds or ctx ends. It then returns the last error that is not
// just a timeout of the attempt.
func retry(ctx context.Context, attempt func(context.Context) error) error {
	var last error

	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()

	for {
		// A container's port accepts connections before anything listens inside.
		once, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := attempt(once)
		if err == nil {
			cancel()
			return nil
		}

		// Prefer an error with a cause over the one that says that time is up.
		if last == nil || once.Err() == nil {
			last = err
		}
		cancel()

		select {
		case <-tick.C:
		case <-ctx.Done():
			return last
		}
	}
}

var (
	processPostgres = sync.OnceValues(func() (Server, error) { return startOnce(StartPostgres, "TEST_DATABASE_URL") })
	processBroker   = sync.OnceValues(func() (Server, error) { return startOnce(StartBroker, "TEST_KAFKA_BROKERS") })
)

// startOnce starts the server of this test process. No test stops it: see the package comment.
func startOnce(start func(context.Context, func(string) string) (Server, error), named string) (Server, error) {
	// Ryuk is Testcontainers' reaper.
	if os.Getenv(named) == "" && os.Getenv("TEST_SERVERS") == "docker" &&
		testcontainers.ReadConfig().Config.RyukDisabled {
		return Server{}, errors.New("Testcontainers' reaper is disabled, so containers would be left behind: run `go run ./test/servers -docker -- go test …`")
	}

	s, err := start(context.Background(), os.Getenv)
	if err == nil {
		fmt.Fprintln(os.Stderr, "tests use", s.Name)
	}
	return s, err
}

// use returns the server of this test process.
func use(t testing.TB, server func() (Server, error)) Server {
	t.Helper()
	s, err := server()
	if err != nil {
		t.Fatal(err)
	}

	t.Log("uses " + s.Name)
	return s
}
