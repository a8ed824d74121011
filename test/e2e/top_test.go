package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/internal/top"
)

// TestTopAgreesWithTheDatabase: payments, waiting events and leader that oncepay top shows are those
// of the tables.
func TestTopAgreesWithTheDatabase(t *testing.T) {
	t.Parallel()
	const paid = 11
	c := newChain(t)
	relays := map[string]*process.Process{c.relay.Admin: c.relay}
	standby := c.start("relay", append(c.relayEnv, "DATABASE_URL="+c.url("relay"), "RELAY_LEASE=3s")...)
	relays[standby.Admin] = standby
	worker := c.start("worker", append(c.consumerEnv, "DATABASE_URL="+c.url("worker"), "WORKER_PARTS=expiry")...)
	args := []string{"top", "--every", "500ms", "--api", c.api.Admin, "--relay", c.relay.Admin + "," + standby.Admin,
		"--consumer", c.consumer.Admin, "--worker", worker.Admin}

	c.payEach("top", paid)
	c.payEach("top", paid) // repeats, which are no payments
	c.number(paid, `SELECT count(*) FROM payments WHERE idempotency_key LIKE 'top-%'`)
	f := c.top(args, func(f top.Figures) error {
		if f.Outbox.Waiting != 0 || f.Consumer.Lag != 0 || f.Relay.Leaders != 1 || f.Relay.StandBy != 1 || !f.Worker.Overdue.Known() ||
			f.Outbox.Cursor != top.CursorAtEnd {
			return errors.New("it is not at rest")
		}
		return nil
	})
	if f.API.New != paid || f.Outbox.DaysAhead != 7 || f.Outbox.Cursor != top.CursorAtEnd {
		t.Errorf("%+v %+v", f.API, f.Outbox)
	}
	leading := relays[leader(f)]
	c.number(leading.Pid(), `SELECT split_part(holder, '/', 2)::int FROM outbox_cursors`)

	// While the test keeps the cursor from moving, events wait.
	tx, err := c.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM outbox_cursors FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	c.payEach("waits", 5)
	c.number(5, `SELECT count(*) FROM outbox_events, outbox_cursors WHERE id > last_id`)
	c.top(args, func(f top.Figures) error {
		if f.Outbox.Waiting != 5 || !(f.Outbox.Oldest > 0) {
			return fmt.Errorf("of 5 events it shows %v", f.Outbox.Waiting)
		}
		return nil
	})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	f = c.top(args, func(f top.Figures) error {
		if f.Outbox.Waiting != 0 || f.Relay.Leaders != 1 {
			return errors.New("events still wait")
		}
		return nil
	})

	// The other one leads when the leader is gone, and the screen says both.
	leading = relays[leader(f)]
	leading.Kill()
	f = c.top(args, func(f top.Figures) error {
		if leader(f) == "" || leader(f) == leading.Admin {
			return errors.New("the other one does not lead")
		}
		return nil
	})
	c.number(relays[leader(f)].Pid(), `SELECT split_part(holder, '/', 2)::int FROM outbox_cursors`)
	screen, err := c.output(append(args, "--once")...)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"leading: " + leader(f) + ", 1 of 2 unreachable", "relay at " + leading.Admin + " cannot be reached: connection refused",
		fmt.Sprintf("%d new since its start", paid+5),
	} {
		if !strings.Contains(string(screen), want) {
			t.Errorf("the screen lacks %q:\n%s", want, screen)
		}
	}
}

// payEach pays under n keys that begin alike.
func (c *chain) payEach(begin string, n int) {
	c.t.Helper()
	for i := range n {
		if a, err := c.pay(c.t.Context(), fmt.Sprintf("%s-%d", begin, i), 100); err != nil || a.status != http.StatusCreated {
			c.t.Fatalf("%v %+v", err, a)
		}
	}
}

// top runs oncepay top until what it shows is as wanted.
func (c *chain) top(args []string, wanted func(top.Figures) error) (f top.Figures) {
	c.t.Helper()
	testenv.Eventually(c.t, 30*time.Second, func() error {
		out, err := c.output(append(args, "--json")...)
		if err != nil {
			return err
		}
		f = top.Figures{}
		if err := json.Unmarshal(out, &f); err != nil {
			return err
		}
		if err := wanted(f); err != nil {
			return fmt.Errorf("%w:\n%s", err, out)
		}
		return nil
	})
	return f
}

// output runs a command that needs no environment.
func (c *chain) output(args ...string) ([]byte, error) {
	cmd := exec.CommandContext(c.t.Context(), filepath.Join(c.dir, "oncepay"), args...)
	cmd.Env = []string{}
	return cmd.Output()
}

// leader is the address of the only relay that says that it leads.
func leader(f top.Figures) (address string) {
	for _, i := range f.Instances {
		if i.Leads && address != "" {
			return ""
		}
		if i.Leads {
			address = i.Address
		}
	}
	return address
}
