package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/testenv"
)

func TestPgBouncerRelayHandsOverAtItsEnd(t *testing.T) {
	t.Parallel()
	r := newRelays(t, "1m")
	first := r.start()
	r.leads(first)
	second := r.start()
	first.Stop()
	r.leads(second)
	r.everythingArrived()
}

func TestThroughPgBouncerARelayThatIsKilledIsReplaced(t *testing.T) {
	t.Parallel()
	r := newRelays(t, "1s")
	first := r.start()
	r.leads(first)
	second := r.start()
	first.Kill()
	r.leads(second)
	r.everythingArrived()
}

func TestPgBouncerStoppedRelayIsFenced(t *testing.T) {
	t.Parallel()
	r := newRelays(t, "5s")
	first := r.start()
	r.leads(first)
	second := r.start()
	signal(t, first, syscall.SIGSTOP)
	r.leads(second)
	signal(t, first, syscall.SIGCONT)
	r.standsBy(first)
	r.leads(second) // it did not disturb the new leader
	second.Kill()
	r.leads(first)
	r.everythingArrived()
}

// relays are several of one name, while events are written without a pause.
type relays struct {
	t       *testing.T
	chain   *chain                   // without programs: its database and its topics
	url     func(role string) string // where they find the database
	bouncer *pgBouncer               // nil: none is in between
	env     []string                 // of a relay
	started int

	stop    chan struct{}
	writers sync.WaitGroup
	written [aggregates]int64 // events of each aggregate
	total   atomic.Int64
}

const aggregates = 6

// newRelays is newRelaysVia with PgBouncer in between.
func newRelays(t *testing.T, lease string) *relays {
	t.Helper()
	db := testenv.Database(t)
	bouncer := newPgBouncer(t, db, db.URL)
	// The limits of the role are not for the test's own writers.
	if _, err := db.Pool(t, "").Exec(t.Context(), "ALTER ROLE api_write IN DATABASE "+db.Name+" RESET ALL"); err != nil {
		t.Fatal(err)
	}
	r := newRelaysVia(t, db, bouncer.URL, bouncer.Pool("api_write", aggregates), "RELAY_LEASE="+lease)
	r.bouncer = bouncer
	return r
}

// newRelaysVia begins to write events; url is where relays will find the database, env is what else they are told.
func newRelaysVia(t *testing.T, db *testenv.DB, url func(role string) string, pool *pgxpool.Pool, env ...string) *relays {
	t.Helper()
	built, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	r := &relays{t: t, url: url, env: env, stop: make(chan struct{})}
	r.chain = &chain{t: t, dir: built, owner: db.Pool(t, ""), prefix: testenv.TopicPrefix(t)}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); r.writers.Wait() })
	for a := range aggregates {
		r.writers.Go(func() {
			pause := time.NewTicker(10 * time.Millisecond)
			defer pause.Stop()
			for version := int64(1); ; version++ {
				event := outbox.Event{
					ID: uuid.Must(uuid.NewV7()), AggregateType: "payments", AggregateID: strconv.Itoa(a), AggregateVersion: version,
					Type: "payment.completed", Payload: []byte("{}"), Headers: map[string]string{"version": strconv.FormatInt(version, 10)},
				}
				// One writer for each aggregate: the row lock that orders several.
				if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return outbox.Append(ctx, tx, []outbox.Event{event}) }); err != nil {
					if ctx.Err() == nil {
						t.Errorf("write event: %v", err)
					}
					return
				}
				r.written[a] = version
				r.total.Add(1)
				select {
				case <-r.stop:
					return
				case <-ctx.Done():
					return
				case <-pause.C:
				}
			}
		})
	}
	return r
}

// start starts one more relay.
func (r *relays) start() *process.Process {
	r.t.Helper()
	r.started++
	dir := r.t.TempDir() // of its own: for its log
	if err := os.Symlink(filepath.Join(r.chain.dir, "relay"), filepath.Join(dir, "relay")); err != nil {
		r.t.Fatal(err)
	}
	n := r.started
	p, err := process.Start(r.t.Context(), dir, "relay", append(slices.Clone(r.env), "DATABASE_URL="+r.url("relay"),
		"KAFKA_BROKERS="+strings.Join(testenv.Brokers(r.t), ","), "TOPIC_PREFIX="+r.chain.prefix)...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = syscall.Kill(p.Pid(), syscall.SIGCONT) // it may have ended, or never been stopped
		p.Stop()
		if log, _ := os.ReadFile(filepath.Join(dir, "relay.log")); r.t.Failed() || strings.Contains(string(log), "DATA RACE") {
			r.t.Errorf("log of relay %d:\n%s", n, log)
		}
	})
	return p
}

func signal(t *testing.T, p *process.Process, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(p.Pid(), s); err != nil {
		t.Fatal(err)
	}
}

// leads waits until a relay leads and moves what is being written.
func (r *relays) leads(p *process.Process) {
	r.t.Helper()
	began := time.Now()
	r.says(p, "relay_leader 1")
	took := time.Since(began)
	from := r.sent()
	testenv.Eventually(r.t, 20*time.Second, func() error {
		if r.sent() < from+100 {
			return errors.New("the leader does not move the cursor")
		}
		return nil
	})
	r.t.Logf("it led after %s", took.Round(time.Millisecond))
}

func (r *relays) standsBy(p *process.Process) {
	r.t.Helper()
	r.says(p, "relay_leader 0")
}

func (r *relays) says(p *process.Process, line string) {
	r.t.Helper()
	testenv.Eventually(r.t, 20*time.Second, func() error {
		if !strings.Contains(get(r.t, "http://"+p.Admin+"/metrics"), "\n"+line+"\n") {
			return fmt.Errorf("its metrics do not say %s", line)
		}
		return nil
	})
}

// sent is how far the cursor has come.
func (r *relays) sent() (id int64) {
	r.t.Helper()
	if err := r.chain.owner.QueryRow(r.t.Context(), `SELECT last_id FROM outbox_cursors`).Scan(&id); err != nil {
		r.t.Fatal(err)
	}
	return id
}

// everythingArrived ends the writers and reads the topic: every event is on it, and what is seen for the first time is in order.
func (r *relays) everythingArrived() {
	r.t.Helper()
	r.endWriting()
	r.inOrder(r.chain.topic("payments", int(r.total.Load())))
	if r.bouncer != nil {
		r.bouncer.sessionsAreClean("relay")
	}
}

func (r *relays) endWriting() {
	close(r.stop)
	r.writers.Wait()
}

// inOrder looks at the records of the topic: every event is among them, and what is seen for the first time is in order. It returns how
// many are repeats.
func (r *relays) inOrder(records []*kgo.Record) (repeated int) {
	r.t.Helper()
	var newest [aggregates]int64
	for _, record := range records {
		a, err1 := strconv.Atoi(string(record.Key))
		version, err2 := strconv.ParseInt(header(record, "version"), 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			r.t.Fatal(err)
		}
		switch {
		case version <= newest[a]:
			repeated++
		case version == newest[a]+1:
			newest[a] = version
		default:
			r.t.Fatalf("aggregate %d: version %d comes after %d", a, version, newest[a])
		}
	}
	if newest != r.written {
		r.t.Errorf("the topic ends with the versions %v, written were %v", newest, r.written)
	}
	r.t.Logf("%d events, %d records repeated", r.total.Load(), repeated)
	return repeated
}
