package ops

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/testenv"
)

// TestMoveTenant moves a tenant under load to another cluster. The command is killed at both of its
// crash points first. No request is lost or done twice, and every old one is answered as before.
func TestMoveTenant(t *testing.T) {
	t.Parallel()
	source := open(t)
	source.stop() // its clients may not be refused
	target := empty(t)
	source.env["oncepay"] = append(source.env["oncepay"], "TARGET_DATABASE_URL="+target.db.URL)

	c := newCustomers(source)
	c.repeated(20)

	t.Run("killed while it copies", func(t *testing.T) {
		locked := target.stuck(t, `LOCK TABLE ledger_entries IN SHARE MODE`)
		stop := c.pay()
		source.moveAndKill(t, target)
		locked()
		stop()
		if c.refusal == 0 {
			t.Error("no request was refused: the test shows nothing")
		}

		c.refused()
		if n := target.count(`SELECT count(*) FROM tenants`); n != 0 {
			t.Errorf("the target has %d tenants", n)
		}
		if got := current.run(t, "oncepay", source.env["oncepay"], strings.Fields("tenants stay ops"), nil); got.code != 0 {
			t.Fatalf("stay: %+v", got)
		}
		c.repeated(20)
	})

	t.Run("killed before the target commits", func(t *testing.T) {
		target.exec(`CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$`)
		target.exec(`CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON tenants DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION wait()`)
		locked := target.stuck(t, `SELECT pg_advisory_xact_lock(1)`)
		source.moveAndKill(t, target)

		c.refused()
		got := current.run(t, "oncepay", source.env["oncepay"], strings.Fields("tenants stay ops"), nil)
		if got.code != 2 || !strings.Contains(strings.Join(got.stderr, ""), "is being copied") {
			t.Errorf("the target may still commit, and the tenant may stay: %+v", got)
		}
		locked()
		if n := target.count(`SELECT count(*) FROM tenants`); n != 0 {
			t.Errorf("the target has %d tenants", n)
		}
	})

	for range 2 { // the second finds it done
		got := current.run(t, "oncepay", source.env["oncepay"], strings.Fields("tenants move ops"), nil)
		if got.code != 0 {
			t.Fatalf("move: %+v", got)
		}
	}

	target.Token, target.Accounts = source.Token, source.Accounts
	for _, program := range programs {
		target.start(current, program)
	}
	c.at = target
	c.repeated(20)
	c.replayed()
	compare(t, source, target, c)
}

// empty is a cluster without tenants and load. Its programs are not running.
func empty(t *testing.T) *shop {
	t.Helper()
	s := newShop(t)
	t.Cleanup(s.close)
	return s
}

func (s *shop) exec(query string, args ...any) {
	s.t.Helper()
	if _, err := s.owner.Exec(s.t.Context(), query, args...); err != nil {
		s.t.Fatal(err)
	}
}

// stuck takes a lock until release is called, which first ends the sessions that wait for it.
func (s *shop) stuck(t *testing.T, lock string) (release func()) {
	t.Helper()
	tx, err := s.owner.Begin(s.t.Context())
	if err == nil {
		_, err = tx.Exec(s.t.Context(), lock)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		s.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`)
		if err := tx.Rollback(s.t.Context()); err != nil {
			t.Error(err)
		}
		s.none(`SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
			AND backend_type = 'client backend'`)
	}
}

// moveAndKill kills the command when the target is stuck.
func (s *shop) moveAndKill(t *testing.T, target *shop) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), current.path(t, "oncepay"), "tenants", "move", "ops")
	cmd.Env, cmd.Stdout, cmd.Stderr = s.env["oncepay"], io.Discard, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	testenv.Eventually(t, soon, func() error {
		if target.count(`SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 0 {
			return errors.New("the command is not stuck")
		}
		return nil
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
}

// customers pay, and remember what they were told.
type customers struct {
	at *shop

	mu      sync.Mutex
	answers map[string][]byte // by key
	refusal int
	n       int
}

func newCustomers(s *shop) *customers { return &customers{at: s, answers: map[string][]byte{}} }

// once sends the request of a key once, and reports whether it was done.
func (c *customers) once(key string) (answer []byte, replayed string, done bool, err error) {
	body := fmt.Sprintf(`{"amount_minor":1,"currency":"USD","source_account":%q,"destination_account":%q}`,
		c.at.Accounts[0].ID, c.at.Accounts[1].ID)
	r, err := http.NewRequest(http.MethodPost, "http://"+c.at.address+"/api/v1/payments", strings.NewReader(body))
	if err != nil {
		return nil, "", false, err
	}
	r.Header.Set("Authorization", "Bearer "+c.at.Token)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)

	response, err := (&http.Client{Timeout: soon}).Do(r)
	if err != nil {
		return nil, "", false, err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	switch {
	case err != nil:
		return nil, "", false, err
	case response.StatusCode == http.StatusCreated:
		return answer, response.Header.Get("Idempotent-Replayed"), true, nil
	case response.StatusCode == http.StatusServiceUnavailable && response.Header.Get("Retry-After") != "":
		return nil, "", false, nil
	}
	return nil, "", false, fmt.Errorf("%s %s", response.Status, answer)
}

// do pays under a new key, and again under those that were refused.
func (c *customers) do() {
	c.mu.Lock()
	c.n++
	key := fmt.Sprintf("m-%d", c.n)
	c.answers[key] = nil
	c.mu.Unlock()

	answer, _, done, err := c.once(key)
	if err != nil {
		c.at.t.Error(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers[key] = answer
	if !done {
		c.refusal++
	}
}

// repeated pays n times. None may be refused.
func (c *customers) repeated(n int) {
	c.at.t.Helper()
	c.refusal = 0
	for range n {
		c.do()
	}
	if c.refusal > 0 {
		c.at.t.Errorf("%d of %d requests were refused", c.refusal, n)
	}
}

// refused pays once, in vain.
func (c *customers) refused() {
	c.at.t.Helper()
	c.refusal = 0
	if c.do(); c.refusal != 1 {
		c.at.t.Error("a request was executed while its tenant moves")
	}
}

// pay pays until stop is called.
func (c *customers) pay() (stop func()) {
	c.refusal = 0
	stopped := make(chan struct{})
	var working sync.WaitGroup
	for range 3 {
		working.Go(func() {
			for {
				select {
				case <-stopped:
					return
				default:
					c.do()
				}
			}
		})
	}
	return func() { close(stopped); working.Wait() }
}

// replayed repeats every request where the tenant is now. What was answered is answered the same.
func (c *customers) replayed() {
	c.at.t.Helper()
	for key, first := range c.answers {
		answer, replayed, done, err := c.once(key)
		switch {
		case err != nil || !done:
			c.at.t.Fatalf("%s: done %v, %v", key, done, err)
		case first == nil && replayed != "false":
			c.at.t.Errorf("%s was refused, and done nevertheless", key)
		case first != nil && (replayed != "true" || string(answer) != string(first)):
			c.at.t.Errorf("%s: replayed %s\n%s\n%s", key, replayed, first, answer)
		}
		c.answers[key] = answer
	}
}

// compare counts payments and events of both clusters, and the money.
func compare(t *testing.T, source, target *shop, c *customers) {
	t.Helper()
	target.none(`SELECT count(*) FROM payments WHERE status = 'authorized'`)
	target.none(`SELECT (SELECT count(*) FROM outbox_events) - (SELECT count(*) FROM inbox_events)`)
	target.none(`SELECT $1 - count(*) FROM payments WHERE idempotency_key LIKE 'm-%'`, len(c.answers))
	target.none(`SELECT count(*) FROM accounts a WHERE balance_minor <> (
		SELECT coalesce(sum(amount_minor), 0) FROM ledger_entries e WHERE e.account_id = a.id)`)
	target.none(`SELECT count(*) FROM (SELECT FROM accounts GROUP BY tenant_id HAVING sum(balance_minor) <> 0) a`)

	// Each payment has one event, in one of the two outboxes.
	events := map[string]int{}
	for _, s := range []*shop{source, target} {
		s.none(`SELECT count(*) FROM outbox_events o WHERE NOT EXISTS (SELECT FROM inbox_events i WHERE i.event_id = o.event_id)`)
		rows, err := s.owner.Query(t.Context(), `SELECT aggregate_id FROM outbox_events WHERE event_type = 'payment.completed'`)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var id string
			if err := rows.Scan(&id); err != nil {
				t.Fatal(err)
			}
			events[id]++
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
	for key, answer := range c.answers {
		var payment struct{ ID uuid.UUID }
		if err := json.Unmarshal(answer, &payment); err != nil {
			t.Fatal(err)
		}
		if n := events[payment.ID.String()]; n != 1 {
			t.Errorf("the payment of %s has %d events", key, n)
		}
	}
}
