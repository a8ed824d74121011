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
	findTimeout  = 30 * time.Second // for a server that was named, and so should be running
)

// settings trade safety against a power failure, which no test survives anyway, for speed.
// Commits stay real.
var settings = map[string]string{
	"fsync": "off", "full_page_writes": "off",
	"max_connections": "300", "max_prepared_transactions": "10",
}

// kind is what differs between the two servers.
type kind struct {
	name     string
	variable string // names a running one
	docker   func(ctx context.Context, getenv func(string) string) (Server, error)
	embedded func(ctx context.Context, getenv func(string) string) (Server, error)

	// reach waits until a server that was just started answers, and returns its version if it
	// tells it.
	reach func(ctx context.Context, address string) (version string, err error)
}

// StartPostgres finds or starts a Postgres by the rules of the package comment. The caller
// stops it.
func StartPostgres(ctx context.Context, getenv func(string) string) (Server, error) {
	return start(ctx, getenv, kind{
		"Postgres", "TEST_DATABASE_URL", postgresContainer, embeddedPostgres, reachPostgres,
	})
}

// StartBroker finds or starts a Kafka by the rules of the package comment. The caller stops it.
func StartBroker(ctx context.Context, getenv func(string) string) (Server, error) {
	return start(ctx, getenv, kind{
		"Kafka", "TEST_KAFKA_BROKERS", kafkaContainer, embeddedKafka, reachKafka,
	})
}

func start(ctx context.Context, getenv func(string) string, k kind) (s Server, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	switch servers := getenv("TEST_SERVERS"); {
	case getenv(k.variable) != "":
		s = Server{Address: getenv(k.variable), Name: "the one of " + k.variable}
		ctx, cancel = context.WithTimeout(ctx, findTimeout)
		defer cancel()
	case servers == "docker":
		s, err = k.docker(ctx, getenv)
	case servers == "":
		s, err = k.embedded(ctx, getenv)
	default:
		err = fmt.Errorf("TEST_SERVERS is %q, must be docker or empty", servers)
	}
	if err != nil {
		return Server{}, fmt.Errorf("start %s for tests: %w", k.name, err)
	}

	// A container accepts connections before its server is ready.
	version, err := k.reach(ctx, s.Address)
	if err != nil {
		return Server{}, errors.Join(
			fmt.Errorf("reach %s for tests (%s): %w", k.name, s.Name, err),
			s.Stop(context.WithoutCancel(ctx)))
	}

	s.Name = k.name + version + ", " + s.Name
	return s, nil
}

func embeddedPostgres(ctx context.Context, getenv func(string) string) (Server, error) {
	p, err := embedded.StartPostgres(ctx, embedded.PostgresOptions{
		Settings: settings, Download: getenv("EMBEDDED_POSTGRES") == "download",
	})
	if err != nil {
		return Server{}, err
	}
	return Server{Address: p.URL("postgres", "postgres"), Name: p.Origin(), stop: p.Stop}, nil
}

func embeddedKafka(context.Context, func(string) string) (Server, error) {
	k, err := embedded.StartKafka()
	if err != nil {
		return Server{}, err
	}

	stop := func(context.Context) error { k.Stop(); return nil }
	return Server{Address: strings.Join(k.Brokers(), ","), Name: k.Origin(), stop: stop}, nil
}

func reachPostgres(ctx context.Context, url string) (version string, err error) {
	err = retry(ctx, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		defer conn.Close(context.WithoutCancel(ctx))

		version, _, _ = strings.Cut(conn.PgConn().ParameterStatus("server_version"), " ")
		version = " " + version
		return nil
	})
	return version, err
}

func reachKafka(ctx context.Context, brokers string) (version string, err error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(brokers, ",")...))
	if err != nil {
		return "", err
	}
	defer client.Close()

	return "", retry(ctx, client.Ping)
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
