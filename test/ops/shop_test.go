package ops

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/testenv"
)

// soon is long enough for programs with the race detector, on a busy machine.
const soon = 30 * time.Second

// shop is one test's own service, and clients that pay until the test ends. No request of theirs
// may fail.
type shop struct {
	t     *testing.T
	db    *testenv.DB
	owner *pgxpool.Pool
	env   map[string][]string // of each program

	dir     string // of programs and logs, by release
	all     []*process.Process
	running map[string]*process.Process
	address string
	moving  sync.RWMutex // held by each request, and for writing while address changes

	paid atomic.Int64
	stop func()

	Token    string `json:"token"`
	Accounts []struct {
		ID uuid.UUID `json:"id"`
	} `json:"accounts"`
}

// newShop makes a database and says how programs reach it.
func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{
		t: t, db: testenv.Database(t), dir: t.TempDir(), running: map[string]*process.Process{},
	}
	s.owner = s.db.Pool(t, "")

	// The database may be slow without a request failing: the handler gives up after 8 s.
	patient := func(role string) string {
		return s.db.URLAs(role) + "&statement_timeout=20s&lock_timeout=20s&idle_in_transaction_session_timeout=20s"
	}
	prefix := testenv.TopicPrefix(t)
	brokers := "KAFKA_BROKERS=" + strings.Join(testenv.Brokers(t), ",")
	s.env = map[string][]string{
		"api": {
			"DATABASE_URL=" + patient("api_write"), "DATABASE_READ_URL=" + patient("api_read"),
			"HTTP_ADDR=127.0.0.1:0", "AUTHORIZATION_MIN=1s",
		},
		"relay": {
			"DATABASE_URL=" + s.db.URLAs("relay"), brokers, "TOPIC_PREFIX=" + prefix, "RELAY_LEASE=1s",
		},
		"consumer": {
			"DATABASE_URL=" + s.db.URLAs("consumer"), brokers, "TOPIC_PREFIX=" + prefix,
			"CONSUMER_GROUP=" + prefix + "statements",
		},
		"worker":  {"DATABASE_URL=" + s.db.URLAs("worker"), "WORKER_PARTS=expiry"},
		"migrate": {"DATABASE_URL=" + s.db.URL},
		"oncepay": {"DATABASE_URL=" + s.db.URL},
	}
	return s
}

// open seeds a database, starts the programs of this checkout and lets the clients pay.
func open(t *testing.T) *shop {
	t.Helper()
	s := newShop(t)

	seeded := current.run(t, "oncepay", s.env["oncepay"], seed, nil)
	if err := json.Unmarshal([]byte(seeded.stdout), s); err != nil || seeded.code != 0 {
		t.Fatalf("seed: %v, %+v", err, seeded)
	}

	t.Cleanup(s.close)
	for _, program := range programs {
		s.start(current, program)
	}
	s.pay()
	s.serves()
	return s
}

var seed = strings.Fields(
	"seed --tenant ops --client shop --currency USD --accounts 2 --fund 1000000 --json")

// start starts a program. The clients go to the API that was started last.
func (s *shop) start(r *release, program string) {
	s.t.Helper()
	path, dir := r.path(s.t, program), filepath.Join(s.dir, r.name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Symlink(path, filepath.Join(dir, program)); err != nil && !os.IsExist(err) {
		s.t.Fatal(err)
	}

	name := fmt.Sprintf("%s-%d", program, len(s.all))
	p, err := process.StartAs(s.t.Context(), dir, program, name, s.env[program]...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.all = append(s.all, p)
	s.running[program] = p

	if program == "api" {
		s.moving.Lock()
		s.address = p.Addr
		s.moving.Unlock()
	}
}

// roll replaces the running programs by those of a release. Each starts beside the one before it.
func (s *shop) roll(r *release) {
	s.t.Helper()
	for _, program := range programs {
		before := s.running[program]
		s.start(r, program)

		before.Stop()
		if err := before.Err(); !strings.Contains(err.Error(), "(exit status 0)") {
			s.t.Error(err)
		}
	}
}

// answered are the lines of the log that say that a request went well.
var answered = regexp.MustCompile(`(?m)^.*"msg":"request".*"status":20\d,.*\n`)

// close stops what runs. A test that failed shows the logs.
func (s *shop) close() {
	if s.stop != nil {
		s.stop()
	}

	for _, p := range s.all {
		p.Stop()
	}
	logs, _ := filepath.Glob(filepath.Join(s.dir, "*", "*.log")) // the pattern is well-formed
	for _, log := range logs {
		text, _ := os.ReadFile(log)
		text = answered.ReplaceAll(text, nil)
		if s.t.Failed() || bytes.Contains(text, []byte("DATA RACE")) {
			s.t.Errorf("%s:\n%s", strings.TrimPrefix(log, s.dir), text)
		}
	}
}

// pay starts clients, each with one request at a time. One payment in ten is an authorization that
// expires in a second, which is the worker's to do.
func (s *shop) pay() {
	const clients, every = 3, 50 * time.Millisecond
	stopped := make(chan struct{})
	var working sync.WaitGroup
	s.stop = sync.OnceFunc(func() {
		close(stopped)
		working.Wait()
	})

	for client := range clients {
		working.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()

			for i := 0; ; i++ {
				select {
				case <-stopped:
					return
				case <-tick.C:
				}

				if err := s.payOnce(fmt.Sprintf("k-%d-%d", client, i), i%10 == 9); err != nil {
					s.t.Errorf("a request failed: %v", err)
					return
				}
				s.paid.Add(1)
			}
		})
	}
}

// payOnce pays and reads the payment.
func (s *shop) payOnce(key string, hold bool) error {
	request := map[string]any{
		"amount_minor": 1, "currency": "USD",
		"source_account": s.Accounts[0].ID, "destination_account": s.Accounts[1].ID,
	}
	if hold {
		request["capture"], request["authorization_seconds"] = "manual", 1
	}
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}

	answer, err := s.ask(http.MethodPost, "/payments", key, body, http.StatusCreated)
	if err != nil {
		return err
	}
	var payment struct{ ID string }
	if err := json.Unmarshal(answer, &payment); err != nil {
		return err
	}
	_, err = s.ask(http.MethodGet, "/payments/"+payment.ID, "", nil, http.StatusOK)
	return err
}

// ask sends one request, once.
func (s *shop) ask(method, path, key string, body []byte, want int) ([]byte, error) {
	s.moving.RLock()
	defer s.moving.RUnlock()

	r, err := http.NewRequest(method, "http://"+s.address+"/api/v1"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+s.Token)
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", key)
	}

	response, err := (&http.Client{Timeout: soon}).Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != want {
		err = fmt.Errorf("%s %s: %s %s", method, path, response.Status, answer)
	}
	return answer, err
}

// serves waits until the programs that run now have taken payments, published and processed their
// events, and ended authorizations.
func (s *shop) serves() {
	s.t.Helper()
	before := s.paid.Load()
	testenv.Eventually(s.t, soon, func() error {
		if n := s.paid.Load() - before; n < 20 {
			return fmt.Errorf("%d payments", n)
		}
		return nil
	})

	var now time.Time
	if err := s.owner.QueryRow(s.t.Context(), `SELECT clock_timestamp()`).Scan(&now); err != nil {
		s.t.Fatal(err)
	}
	s.none(`SELECT count(*) FROM outbox_events o WHERE created_at <= $1
		AND NOT EXISTS (SELECT FROM inbox_events i WHERE i.event_id = o.event_id)`, now)
	s.none(`SELECT count(*) FROM payments WHERE status = 'authorized' AND processed_at <= $1`, now)

	for program, p := range s.running {
		select {
		case <-p.Ended:
			s.t.Errorf("%s: %v", program, p.Err())
		default:
		}
	}
}

// none waits until a query that counts something finds nothing. By design a rebalance of the
// consumers may take a minute: inbox's rebalanceTimeout.
func (s *shop) none(query string, args ...any) {
	s.t.Helper()
	testenv.Eventually(s.t, soon+time.Minute, func() error {
		var n int
		if err := s.owner.QueryRow(s.t.Context(), query, args...).Scan(&n); err != nil {
			s.t.Fatal(err)
		}
		if n != 0 {
			return fmt.Errorf("%d are left of: %s", n, query)
		}
		return nil
	})
}

// settle ends the load, waits for its last event, and counts.
func (s *shop) settle() {
	s.t.Helper()
	s.serves()
	s.stop()

	s.none(`SELECT count(*) FROM payments WHERE status = 'authorized'`)
	s.none(`SELECT (SELECT count(*) FROM outbox_events) - (SELECT count(*) FROM inbox_events)`)
	s.none(`SELECT $1 - count(*) FROM payments WHERE idempotency_key LIKE 'k-%'`, s.paid.Load())
	s.none(`SELECT count(*) FROM (
		SELECT FROM ledger_entries GROUP BY payment_id, currency
		HAVING sum(amount_minor) <> 0) unbalanced`)
	s.none(`SELECT count(*) FROM accounts a WHERE held_minor <> 0 OR balance_minor <> (
		SELECT coalesce(sum(amount_minor), 0) FROM ledger_entries e WHERE e.account_id = a.id)`)
}

func (s *shop) count(query string, args ...any) (n int) {
	s.t.Helper()
	if err := s.owner.QueryRow(s.t.Context(), query, args...).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}
