package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/testenv"
)

// TestMain makes the test's own binary the program, where a test starts it as such.
func TestMain(m *testing.M) {
	if os.Getenv("ORDERS_PROGRAM") != "" {
		main()
		return
	}

	code := m.Run()
	_ = os.RemoveAll(built) // temporary; nothing when no test needed it
	os.Exit(code)
}

var built string // what programs made

// programs builds those of oncepay once.
var programs = sync.OnceValues(func() (string, error) {
	var err error
	if built, err = os.MkdirTemp("", "oncepay-orders-"); err != nil {
		return "", err
	}
	return built, process.Build(context.Background(), built, testenv.Race, "api", "worker", "oncepay")
})

// bank is the real payments service, with two accounts.
type bank struct {
	t     *testing.T
	dir   string // programs and logs
	db    *testenv.DB
	owner *pgxpool.Pool
	addr  string
	api   *process.Process

	worker    *process.Process // with takeCards
	workerEnv []string

	Token    string `json:"token"`
	Accounts []struct {
		ID uuid.UUID `json:"id"`
	} `json:"accounts"`
}

func (b *bank) shop() uuid.UUID     { return b.Accounts[0].ID }
func (b *bank) customer() uuid.UUID { return b.Accounts[1].ID }

const funds = 1_000_000 // of each account

func newBank(t *testing.T) *bank {
	t.Helper()
	programs, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	b := &bank{t: t, dir: t.TempDir(), db: testenv.Database(t), addr: freeAddress(t)}
	for _, name := range []string{"api", "worker", "oncepay"} {
		if err := os.Symlink(filepath.Join(programs, name), filepath.Join(b.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	b.owner = b.db.Pool(t, "")
	seed := exec.Command(filepath.Join(b.dir, "oncepay"), "seed", "--tenant", "shop", "--client", "orders",
		"--currency", "USD", "--cards", "--accounts", "2", "--fund", fmt.Sprint(funds), "--json")
	seed.Env = []string{"DATABASE_URL=" + b.db.URL}
	out, err := seed.Output()
	if err != nil {
		t.Fatalf("seed: %v %s", err, out)
	}
	if err := json.Unmarshal(out, b); err != nil {
		t.Fatal(err)
	}
	b.startAPI()
	return b
}

func (b *bank) startAPI() {
	b.t.Helper()
	b.api = start(b.t, b.dir, "api", "DATABASE_URL="+b.db.URLAs("api_write"),
		"DATABASE_READ_URL="+b.db.URLAs("api_read"), "HTTP_ADDR="+b.addr)
}

func start(t *testing.T, dir, name string, env ...string) *process.Process {
	t.Helper()
	p, err := process.Start(t.Context(), dir, name, env...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop()
		log, _ := os.ReadFile(filepath.Join(dir, name+".log"))
		if strings.Contains(string(log), "DATA RACE") || t.Failed() {
			t.Errorf("log of %s:\n%s", name, log[max(0, len(log)-20_000):])
		}
	})
	return p
}

// payments returns how often an order was paid, and what was refunded of it.
func (b *bank) payments(t *testing.T, order uuid.UUID) (paid int, refunded int64) {
	t.Helper()
	err := b.owner.QueryRow(t.Context(), `SELECT count(*), coalesce(sum(refunded_minor), 0)
		FROM payments WHERE client_reference = $1 AND status = 'completed'`, order.String()).Scan(&paid, &refunded)
	if err != nil {
		t.Fatal(err)
	}
	return paid, refunded
}

// newDatabase makes the example's database as README.md does, with stock.
func newDatabase(t *testing.T, books int) *testenv.DB {
	t.Helper()
	db := testenv.EmptyDatabase(t)
	pool := db.Pool(t, "")
	for _, file := range []string{
		"../../migrations/00002_idempotency.sql", "../../migrations/00003_outbox.sql", "orders.sql",
	} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		up, _, _ := strings.Cut(string(b), "-- +goose Down")
		if _, err := pool.Exec(t.Context(), up); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	if _, err := pool.Exec(t.Context(), `INSERT INTO stock (item, price_minor, currency, available)
		VALUES ('book', 1500, 'USD', $1), ('yacht', 100000000, 'USD', 1000)`, books); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `INSERT INTO stock_moves (key, item, available, reserved, sold)
		SELECT 'delivery/' || item, item, available, 0, 0 FROM stock`); err != nil {
		t.Fatal(err)
	}
	return db
}

// check compares all orders, which have ended, with what was paid, the stock and the events.
func check(t *testing.T, payments func(*testing.T, uuid.UUID) (int, int64), db *pgxpool.Pool) (ends map[State]int) {
	t.Helper()
	ends = map[State]int{}
	rows, _ := db.Query(t.Context(), `SELECT `+columns+` FROM orders`)
	orders, err := pgx.CollectRows(rows, pgx.RowToStructByName[order])
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range orders {
		ends[o.State]++
		paid, refunded := payments(t, o.ID)
		right := false
		switch o.State {
		case Confirmed:
			right = paid == 1 && refunded == 0
		case Released:
			right = paid == 0 || paid == 1 && refunded == o.AmountMinor
		case Rejected:
			right = paid == 0
		}
		if !right {
			t.Errorf("order %s is %s (%s), was paid %d times, and %d of %d was refunded",
				o.ID, o.State, o.Reason, paid, refunded, o.AmountMinor)
		}
	}

	for what, query := range map[string]string{
		"items whose stock does not add up": `SELECT count(*) FROM stock s WHERE reserved <> 0
			OR sold <> (SELECT coalesce(sum(quantity), 0) FROM orders o WHERE o.item = s.item AND state = 'confirmed')
			OR (available, reserved, sold) <> (
				SELECT sum(m.available), sum(m.reserved), sum(m.sold) FROM stock_moves m WHERE m.item = s.item)`,
		"orders without an event for each version": `SELECT count(*) FROM orders o WHERE version <> (
			SELECT count(DISTINCT aggregate_version) FROM outbox_events WHERE aggregate_id = o.id::text)
			OR version <> (SELECT count(*) FROM outbox_events WHERE aggregate_id = o.id::text)`,
		"orders whose last event is not their state": `SELECT count(*) FROM orders o WHERE 'order.' || state <> (
			SELECT event_type FROM outbox_events WHERE aggregate_id = o.id::text AND aggregate_version = o.version)`,
	} {
		var n int
		if err := db.QueryRow(t.Context(), query).Scan(&n); err != nil || n != 0 {
			t.Errorf("%s: %d, %v", what, n, err)
		}
	}
	return ends
}

// ended returns an error while an order has not ended.
func ended(ctx context.Context, db *pgxpool.Pool) error {
	var left int
	var example string
	err := db.QueryRow(ctx, `SELECT count(*), coalesce(min(state || ' ' || last_error), '') FROM orders
		WHERE next_try_at IS NOT NULL`).Scan(&left, &example)
	if err == nil && left > 0 {
		err = errors.New(fmt.Sprint(left, " orders have not ended, such as ", example))
	}
	return err
}
