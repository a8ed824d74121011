// Package e2e tests the whole chain from outside: the real programs, built with the race detector, as child processes
// against real servers. TEST_SERVERS=docker, as `make test-containers` sets it, means Postgres and Apache Kafka.
package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/testenv"
)

// programs builds them once for all tests of the package.
var programs = sync.OnceValues(func() (string, error) {
	var err error
	if built, err = os.MkdirTemp("", "oncepay-e2e-"); err != nil {
		return "", err
	}
	return built, process.Build(context.Background(), built, testenv.Race, "api", "relay", "consumer", "worker", "migrate", "oncepay")
})

var built string // what programs made

func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(built) // temporary; nothing when no test needed it
	os.Exit(code)
}

// chain is one test's own service.
type chain struct {
	t      *testing.T
	dir    string // programs and logs
	db     *testenv.DB
	url    func(role string) string // where the programs find db
	owner  *pgxpool.Pool
	prefix string // of topics

	relayEnv, consumerEnv []string // where they find Kafka

	api, relay, consumer *process.Process

	Token    string `json:"token"`
	Accounts []struct {
		ID uuid.UUID `json:"id"`
	} `json:"accounts"`
}

// newChain makes a database, seeds a client with two accounts and starts the three programs.
func newChain(t *testing.T) *chain {
	t.Helper()
	db := testenv.Database(t)
	return newChainVia(t, db, db.URLAs)
}

// newChainVia is newChain with what stands between the programs and their database.
func newChainVia(t *testing.T, db *testenv.DB, url func(role string) string) *chain {
	t.Helper()
	return newChainWith(t, func(c *chain) {
		c.db, c.url = db, url
		c.relayEnv = []string{"KAFKA_BROKERS=" + strings.Join(testenv.Brokers(t), ","), "TOPIC_PREFIX=" + c.prefix}
		c.consumerEnv = append(c.relayEnv[:2:2], "CONSUMER_GROUP="+c.prefix+"statements")
	})
}

// newChainWith is newChain with a database or a broker of the test's own.
func newChainWith(t *testing.T, set func(*chain)) *chain {
	t.Helper()
	built, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	c := &chain{t: t, dir: t.TempDir(), prefix: testenv.TopicPrefix(t)}
	if set(c); c.db == nil {
		c.db = testenv.Database(t)
		c.url = c.db.URLAs
	}
	for _, name := range []string{"api", "relay", "consumer", "worker", "oncepay"} {
		if err := os.Symlink(filepath.Join(built, name), filepath.Join(c.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	c.owner = c.db.Pool(t, "")
	out, err := process.Output(t.Context(), []string{"DATABASE_URL=" + c.db.URL}, filepath.Join(c.dir, "oncepay"), "seed", "--tenant", "e2e", "--client", "shop", "--currency", "USD", "--accounts", "2", "--fund", "1000000", "--json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, c); err != nil {
		t.Fatalf("read what seed printed: %v", err)
	}
	c.startRelay()
	c.startConsumer()
	c.startAPI()
	return c
}

// unhurried is for a database that a busy machine holds up: no request must fail for that.
const unhurried = "&statement_timeout=20s&idle_in_transaction_session_timeout=20s"

func (c *chain) startAPI() {
	c.t.Helper()
	free, err := process.FreeAddress() // it comes back there
	if err != nil {
		c.t.Fatal(err)
	}
	c.api = c.start("api", "DATABASE_URL="+c.url("api_write")+unhurried, "DATABASE_READ_URL="+c.url("api_read")+unhurried, "HTTP_ADDR="+free)
}

func (c *chain) startRelay() {
	c.t.Helper()
	c.relay = c.start("relay", append(c.relayEnv, "DATABASE_URL="+c.url("relay"), "RELAY_LEASE=3s")...)
}

func (c *chain) startConsumer() {
	c.t.Helper()
	c.consumer = c.start("consumer", append(c.consumerEnv, "DATABASE_URL="+c.url("consumer"))...)
}

func (c *chain) start(name string, env ...string) *process.Process {
	c.t.Helper()
	p, err := process.Start(c.t.Context(), c.dir, name, env...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		p.Stop()
		if log, _ := os.ReadFile(filepath.Join(c.dir, name+".log")); strings.Contains(string(log), "DATA RACE") || c.t.Failed() {
			c.t.Errorf("log of %s:\n%s", name, log)
		}
	})
	return p
}

// answer is what a client got.
type answer struct {
	status int
	header http.Header
	body   string
}

// pay sends a payment from the first account to the second.
func (c *chain) pay(ctx context.Context, key string, amount int) (answer, error) {
	return c.send(ctx, "POST", "/api/v1/payments", key, fmt.Sprintf(`{"amount_minor":%d,"currency":"USD","source_account":%q,"destination_account":%q}`,
		amount, c.Accounts[0].ID, c.Accounts[1].ID))
}

func (c *chain) send(ctx context.Context, method, path, key, body string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+c.api.Addr+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	r.Header.Set("Authorization", "Bearer "+c.Token)
	r.Header.Set("Traceparent", "00-"+clientTrace+"-"+clientSpan+"-01")
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", key)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(b)}, err
}

// topic reads a topic until n different events are there, and returns all records.
func (c *chain) topic(name string, n int) []*kgo.Record {
	c.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(testenv.Brokers(c.t)...), kgo.ConsumeTopics(c.prefix+name),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		c.t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	var records []*kgo.Record
	for seen := map[string]bool{}; len(seen) < n; {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			c.t.Fatalf("topic %s has %d of %d events", name, len(seen), n)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			records, seen[header(r, "ce_id")] = append(records, r), true
		})
	}
	return records
}

func header(r *kgo.Record, key string) string {
	for _, h := range r.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

// number waits until a query that returns one number returns want: for longer than a rebalance takes
// where a consumer was killed.
func (c *chain) number(want int, query string) {
	c.t.Helper()
	testenv.Eventually(c.t, 90*time.Second, func() error {
		var got int
		if err := c.owner.QueryRow(c.t.Context(), query).Scan(&got); err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("got %d, want %d of: %s", got, want, query)
		}
		return nil
	})
}

var errRefused = errors.New("the payment was refused")
