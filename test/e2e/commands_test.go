package e2e

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/oncepay/oncepay/internal/fakepsp"
	"github.com/oncepay/oncepay/internal/process"
)

// A command of one of our programs, in a block or between backquotes. The runbook's are those of an
// operator, the README's a visitor's.
var documentedProgram = regexp.MustCompile("(?m)(?:^ {4,}|`)((?:oncepay|relay|consumer|worker|migrate) [a-z][^`\n]*)")

// TestDocumentedPrograms runs every command of our programs that README and runbook show, as it is
// written, names and numbers aside. Each must succeed.
func TestDocumentedPrograms(t *testing.T) {
	t.Parallel()
	c := newChain(t)
	paid, err := c.pay(t.Context(), "order-0", 2500)
	if err != nil || paid.status != http.StatusCreated {
		t.Fatalf("%v %+v", err, paid)
	}
	var payment struct{ ID string }
	if err := json.Unmarshal([]byte(paid.body), &payment); err != nil {
		t.Fatal(err)
	}
	c.relay.Stop() // it would send the dead letter
	if err := os.Symlink(filepath.Join(built, "migrate"), filepath.Join(c.dir, "migrate")); err != nil {
		t.Fatal(err)
	}
	provider := c.provider()
	names := strings.NewReplacer("--to ACCOUNT", "--to "+c.Accounts[1].ID.String(), "ACCOUNT", c.Accounts[0].ID.String(),
		"PAYMENT", payment.ID, "KEY", "order-0", "OPERATION", c.operation(), "ENDPOINT", c.endpoint(), "2026-03-01T12:00:00Z", c.oldestDay(),
		"/mnt/archive", t.TempDir(),
		"oncepay top", "oncepay top --api "+c.api.Admin+" --consumer "+c.consumer.Admin) // not the ports of Compose

	run := func(command string) {
		env := []string{"PATH=" + c.dir + ":/bin:/usr/bin", "ONCEPAY_TOKEN=" + c.Token,
			"ONCEPAY_URL=http://" + c.api.Addr, "DATABASE_URL=" + c.db.URL, "PSP_URL=" + provider, "PSP_API_KEY=sk_test"}
		switch strings.Fields(command)[0] {
		case "relay":
			env = append(append(env, c.relayEnv...), "DATABASE_URL="+c.url("relay"))
		case "consumer":
			env = append(append(env, c.consumerEnv...), "DATABASE_URL="+c.url("consumer"))
		case "worker":
			env = append(append(env, c.relayEnv...), "DATABASE_URL="+c.url("worker"))
		}
		if _, err := process.Output(t.Context(), env, "sh", "-c", command); err != nil {
			t.Errorf("%s\n%v", command, err)
		}
	}

	n := 0
	var resolve []string
	for _, file := range []string{"../../README.md", "../../docs/operating.md"} {
		page, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range documentedProgram.FindAllSubmatch(page, -1) {
			n++
			command := string(m[1])
			if strings.Contains(command, "psp resolve") {
				resolve = append(resolve, command)
				continue
			}
			c.deadLetter("1234")
			command = names.Replace(command)
			if strings.Contains(command, "revoke ID") {
				command = strings.Replace(command, "ID", c.otherCredential(), 1)
			}
			run(command)
		}
	}
	if n < 15 || len(resolve) == 0 {
		t.Errorf("%d commands were found, %d of them resolve an operation", n, len(resolve))
	}
	// Last: our PSP has none of these charges, and to reconcile them would fail.
	for i, command := range resolve {
		run(strings.Replace(command, "OPERATION", c.unresolved("card-"+strconv.Itoa(i+1)), 1))
	}
	c.number(1, `SELECT count(*) FROM payments WHERE idempotency_key = 'order-1'`)
}

// provider starts a PSP without any charge.
func (c *chain) provider() (url string) {
	c.t.Helper()
	p, err := fakepsp.Open(c.t.TempDir(), fakepsp.Options{APIKey: "sk_test"})
	if err != nil {
		c.t.Fatal(err)
	}
	server := httptest.NewServer(p)
	c.t.Cleanup(func() {
		server.Close()
		_ = p.Close()
	})
	return server.URL
}

// takeCards opens the clearing account that payments by card need.
func (c *chain) takeCards() {
	c.t.Helper()
	_, err := c.owner.Exec(c.t.Context(), `INSERT INTO accounts (id, tenant_id, kind, currency)
		SELECT gen_random_uuid(), tenant_id, 'clearing', 'USD' FROM accounts WHERE id = $1`, c.Accounts[0].ID)
	if err != nil {
		c.t.Fatal(err)
	}
}

// operation pays by card and returns the id of the operation, which nobody executes.
func (c *chain) operation() (id string) {
	c.t.Helper()
	c.takeCards()
	return c.charge("card-0", "100")
}

// unresolved returns the id of an operation that waits for an operator.
func (c *chain) unresolved(key string) (id string) {
	c.t.Helper()
	id = c.charge(key, "2500")
	_, err := c.owner.Exec(c.t.Context(), `UPDATE psp_operations
		SET state = 'unknown', tries = 1, first_tried_at = now(), next_try_at = 'infinity' WHERE id = $1`, id)
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}

func (c *chain) charge(key, amount string) (operation string) {
	c.t.Helper()
	c.oncepay("pay", "--card", "tok_visa", "--to", c.Accounts[0].ID.String(), "--amount", amount, "--currency", "USD", "--key", key)
	if err := c.owner.QueryRow(c.t.Context(), `SELECT id FROM psp_operations ORDER BY created_at DESC LIMIT 1`).Scan(&operation); err != nil {
		c.t.Fatal(err)
	}
	return operation
}

// endpoint returns the id of a webhook endpoint.
func (c *chain) endpoint() (id string) {
	c.t.Helper()
	c.oncepay("webhooks", "create", "--url", "https://example.com/hooks")
	if err := c.owner.QueryRow(c.t.Context(), `SELECT id FROM webhook_endpoints`).Scan(&id); err != nil {
		c.t.Fatal(err)
	}
	return id
}

// oncepay runs the command line as the client.
func (c *chain) oncepay(args ...string) {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), filepath.Join(c.dir, "oncepay"), args...)
	cmd.Env = []string{"ONCEPAY_TOKEN=" + c.Token, "ONCEPAY_URL=http://" + c.api.Addr}
	if out, err := cmd.CombinedOutput(); err != nil {
		c.t.Fatalf("oncepay %s\n%v\n%s", strings.Join(args, " "), err, out)
	}
}

// deadLetter makes the relay's dead letter with this id, as if no operator had seen it.
func (c *chain) deadLetter(id string) {
	c.t.Helper()
	_, err := c.owner.Exec(c.t.Context(), `DELETE FROM outbox_dead_letters; INSERT INTO outbox_dead_letters
		(relay, id, xid, event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at, refusal)
		SELECT 'main', `+id+`, xid, event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at, 'too large'
		FROM outbox_events LIMIT 1`)
	if err != nil {
		c.t.Fatal(err)
	}
}

// oldestDay returns the first day that the outbox keeps.
func (c *chain) oldestDay() (day string) {
	c.t.Helper()
	err := c.owner.QueryRow(c.t.Context(), `SELECT to_date(right(min(inhrelid::regclass::text), 8), 'YYYYMMDD')::text
		FROM pg_inherits WHERE inhparent = 'outbox_events'::regclass`).Scan(&day)
	if err != nil {
		c.t.Fatal(err)
	}
	return day
}

// otherCredential returns the id of a credential that is not the chain's own.
func (c *chain) otherCredential() (id string) {
	c.t.Helper()
	err := c.owner.QueryRow(c.t.Context(), `SELECT c.id FROM credentials c JOIN clients ON clients.id = client_id
		JOIN tenants t ON t.id = tenant_id WHERE t.name = 'demo' LIMIT 1`).Scan(&id)
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}
