package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/cmd/demo/page"
	"github.com/oncepay/oncepay/internal/testenv"
)

// show is a demo that runs, seen from its page.
type show struct {
	t      *testing.T
	stop   context.CancelFunc // as Ctrl-C
	ended  chan int
	ready  chan struct{}
	stderr bytes.Buffer
	states chan page.State // the newest one

	mu  sync.Mutex
	out strings.Builder
	url string
}

func startShow(t *testing.T) *show {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	s := &show{t: t, stop: stop, ended: make(chan int, 1), ready: make(chan struct{}), states: make(chan page.State, 1)}
	t.Cleanup(stop)

	out, in := io.Pipe()
	go func() {
		s.ended <- run(ctx, []string{"-browser=false"}, in, &s.stderr)
		in.Close()
	}()
	go s.read(out)
	select {
	case <-s.ready:
	case code := <-s.ended:
		t.Fatalf("exit code %d: %s", code, s.stderr.String())
	}
	go s.listen(ctx)
	return s
}

func (s *show) read(out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		s.mu.Lock()
		if s.url == "" {
			s.url = regexp.MustCompile(`http://127\.0\.0\.1:\d+/`).FindString(lines.Text())
		}
		s.out.WriteString(lines.Text() + "\n")
		s.mu.Unlock()
		if strings.HasPrefix(lines.Text(), "Ctrl-C stops") {
			close(s.ready)
		}
	}
}

func (s *show) printed() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

// database is the URL that the demo prints.
func (s *show) database() string {
	_, url, _ := strings.Cut(s.printed(), "export DATABASE_URL=\\\n'")
	url, _, _ = strings.Cut(url, "'")
	return url
}

// listen keeps the newest state.
func (s *show) listen(ctx context.Context) {
	r, _ := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"events", nil)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var state page.State
		data, is := strings.CutPrefix(lines.Text(), `data: {"elapsed"`)
		if !is || json.Unmarshal([]byte(`{"elapsed"`+data), &state) != nil {
			continue
		}
		select {
		case <-s.states:
		default:
		}
		s.states <- state
	}
}

// await returns the first state that is as wanted.
func (s *show) await(what string, wanted func(page.State) bool) page.State {
	s.t.Helper()
	deadline := time.After(3 * time.Minute)
	var last page.State
	for {
		select {
		case last = <-s.states:
			if wanted(last) {
				return last
			}
		case code := <-s.ended:
			s.t.Fatalf("exit code %d: %s\n%s", code, s.stderr.String(), s.printed())
		case <-deadline:
			s.t.Fatalf("never: %s\n%+v", what, last)
		}
	}
}

// press presses a button and returns what it says, error or not.
func (s *show) press(path string) (int, string) {
	s.t.Helper()
	response, err := http.Post(s.url+path, "application/json", strings.NewReader("{}"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// calm is a state in which everything runs.
func calm(state page.State) bool {
	for _, b := range state.Boxes {
		if b.State != page.Running && b.State != page.Leading {
			return false
		}
		for _, i := range b.Instances {
			if i.State == page.Down || i.State == page.Starting {
				return false
			}
		}
	}
	return state.Lease != nil && len(state.Faults.Frozen) == 0
}

// TestPage presses every button and takes the tour. Then it stops the demo with half of the service
// frozen, and the count must hold. Like the others that start a whole demo it is not parallel: each of
// them would wait for the other's programs.
func TestPage(t *testing.T) {
	s := startShow(t)

	for _, c := range []struct {
		action string
		status int
		says   string
	}{
		{"repeat", 409, "pay first"},
		{"pay", 200, "201 Created"},
		{"repeat", 200, "Idempotent-Replayed: true"},
		{"repeat-other-amount", 200, "422 Unprocessable Entity: idempotency-key-reused"},
		{"hundred", 200, "100 × 201 Created"},
		{"lose-commit-reply", 200, "pay now"},
		{"open-transaction", 200, "stays open"},
		{"open-transaction", 409, "open already"},
		{"freeze/relay", 200, "is frozen"},
	} {
		status, text := s.press("actions/" + c.action)
		if status != c.status || !strings.Contains(text, c.says) {
			t.Fatalf("%s: %d %s", c.action, status, text)
		}
	}

	state := s.await("the faults and the other leader", func(state page.State) bool {
		return state.Faults.LoseCommitReply && state.Faults.OpenTransaction && len(state.Faults.Frozen) == 1 &&
			len(state.Outbox.Stragglers) == 1 && state.Lease != nil && state.Lease.Holder != state.Faults.Frozen[0]
	})
	if box := state.Box("relay"); box.State != page.Leading || len(box.Instances) != 2 {
		t.Errorf("a standby leads, and the box says %+v", box)
	}

	for _, c := range []struct {
		action string
		status int
		says   string
	}{
		{"pay", 200, "201 Created"},
		{"thaw/relay", 200, "goes on"},
		{"thaw/relay", 409, "not frozen"},
		{"close-transaction", 200, "has committed"},
		{"close-transaction", 409, "no transaction"},
		{"freeze/kafka", 200, "frozen"},
		{"kill/kafka", 409, "kafka is frozen"},
		{"thaw/kafka", 200, "goes on"},
		{"kill/kafka", 200, "4 s"},
		{"kill/kafka", 409, "down"},
		{"freeze/psp", 200, "frozen"},
		{"kill/psp", 200, "2 s"},
		{"freeze/worker", 200, "frozen"},
		{"thaw/worker", 200, "goes on"},
		{"kill/worker", 200, "2 s"},
		{"kill/consumer", 200, "2 s"},
		{"kill/api", 200, "2 s"},
		{"kill/nothing", 404, "no such action"},
		{"nonsense", 404, "no such action"},
	} {
		status, text := s.press("actions/" + c.action)
		if c.says == "down" && status == 200 { // a pause of the machine: it was up again
			status, text = s.press("actions/" + c.action)
		}

		if status != c.status || !strings.Contains(text, c.says) {
			t.Fatalf("%s: %d %s", c.action, status, text)
		}
	}

	s.await("everything runs again", calm)
	if status, text := s.press("actions/kill/relay"); status != 200 {
		t.Fatalf("kill/relay: %d %s", status, text)
	}
	s.await("the killed relay stands by", calm)

	if status, text := s.press("actions/pay"); status != 200 {
		t.Fatalf("pay: %d %s", status, text)
	}
	s.await("the rows of the payment everywhere", func(state page.State) bool {
		tables := map[string]bool{}
		for _, r := range state.Payment.Rows {
			tables[r.Store+" "+r.Table] = true
		}
		return len(tables) == 10
	})

	for n := 1; n <= 6; n++ {
		status, text := s.press(fmt.Sprintf("tour/%d", n))
		var proof page.Proof
		if err := json.Unmarshal([]byte(text), &proof); err != nil || status != 200 || !proof.OK {
			t.Fatalf("tour %d: %d %s", n, status, text)
		}
		if _, err := os.Stat("../../" + proof.File); err != nil || proof.Seconds > 60 {
			t.Errorf("tour %d: %+v, %v", n, proof, err)
		}
	}
	if status, text := s.press("tour/7"); status != 404 {
		t.Errorf("tour 7: %d %s", status, text)
	}

	for _, action := range []string{"open-transaction", "freeze/relay", "freeze/consumer", "kill/worker", "freeze/api"} {
		if status, text := s.press("actions/" + action); status != 200 {
			t.Fatalf("%s: %d %s", action, status, text)
		}
	}
	s.stop()
	if code := <-s.ended; code != 0 || !strings.Contains(s.printed(), "nothing lost, nothing doubled") {
		t.Fatalf("exit code %d: %s\n%s", code, s.stderr.String(), s.printed())
	}
}

// What is broken here is broken for good: the count at the end finds it as well.
const (
	deleteEntry = `
DO $$ BEGIN
  PERFORM set_config('session_replication_role', 'replica', true);
  DELETE FROM ledger_entries WHERE id = (SELECT id FROM ledger_entries ORDER BY entry_no DESC LIMIT 1);
  IF NOT FOUND THEN RAISE 'there is no entry to delete'; END IF;
END $$`

	storeTwice = `
INSERT INTO idempotency_keys
SELECT tenant_id, client_id, key, key_hash, day + 1, fingerprint, fingerprint_version, request_id, created_at, status, content_type, location, body
FROM idempotency_keys WHERE status = 201 LIMIT 1`

	// While keepOut's transaction is open no event is written, so unsent comes down to zero.
	keepOut = `BEGIN; LOCK TABLE outbox_events IN SHARE ROW EXCLUSIVE MODE`
	unsent  = `
SELECT count(*) FROM outbox_events e, outbox_cursors c
WHERE e.id > c.last_id OR NOT pg_visible_in_snapshot(e.xid, c.seen)`

	// The cursor passes an event that was never sent: the topic is read, and it is not there. It passes
	// no other: every transaction that has not ended is one that the cursor has not seen.
	passOver = `
WITH event AS (
  INSERT INTO outbox_events (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
  VALUES ('webhook-endpoints', 'planted', 1, 'planted', '{}') RETURNING id, xid::text::bigint
), running AS (
  SELECT pg_snapshot_xip(pg_current_snapshot())::text::bigint AS xid
  UNION
  SELECT generate_series(pg_snapshot_xmax(pg_current_snapshot())::text::bigint, xid - 1) FROM event
)
UPDATE outbox_cursors SET last_id = event.id, batches = batches + 1000, fencing_token = fencing_token + 1,
  lease_until = '-infinity', chunk_after = NULL, chunk_seen = NULL,
  seen = format('%s:%s:%s', (SELECT coalesce(min(xid), event.xid + 1) FROM running), event.xid + 1,
    (SELECT string_agg(xid::text, ',' ORDER BY xid) FROM running))::pg_snapshot
FROM event;
COMMIT`
)

// TestPlantedFaultsTurnTheirInvariantRed: that one, and no other.
func TestPlantedFaultsTurnTheirInvariantRed(t *testing.T) {
	s := startShow(t)
	red := func(state page.State) (names []string) {
		for _, i := range state.Invariants {
			if i.Wrong > 0 {
				names = append(names, i.Name)
			}
		}
		return names
	}

	checked := s.await("every invariant looks at something", func(state page.State) bool {
		return len(state.Invariants) > 0 && !slices.ContainsFunc(state.Invariants, func(i page.Invariant) bool { return i.Of == 0 })
	})
	if names := red(checked); names != nil {
		t.Fatalf("red before anything is planted: %v", names)
	}

	db, err := pgx.Connect(t.Context(), s.database())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(context.Background())

	var want []string
	for _, plant := range []struct{ sql, name string }{
		{deleteEntry, "books_unbalanced"}, {storeTwice, "paid_twice"}, {passOver, "events_lost"},
	} {
		// A leader may read an event and send it before it notices that the cursor is not its own any more.
		// So the relay is killed, when it has sent all there is.
		if plant.name == "events_lost" {
			if _, err := db.Exec(t.Context(), keepOut); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, time.Minute, func() (err error) {
				var waiting int
				if err = db.QueryRow(t.Context(), unsent).Scan(&waiting); err == nil && waiting > 0 {
					err = fmt.Errorf("%d events are not sent", waiting)
				}
				return err
			})
			if status, text := s.press("actions/kill/relay"); status != 200 {
				t.Fatal(text)
			}
		}
		if _, err := db.Exec(t.Context(), plant.sql); err != nil {
			t.Fatal(err)
		}
		want = append(want, plant.name)
		state := s.await(plant.name+" is red", func(state page.State) bool {
			return slices.Contains(red(state), plant.name)
		})

		got := red(state)
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", plant.name, diff)
		}
	}

	s.stop()
	if code := <-s.ended; code != 1 {
		t.Errorf("exit code %d", code)
	}
	_, kept, _ := strings.Cut(s.stderr.String(), "are kept in ")
	if kept = strings.TrimSpace(kept); kept != "" {
		_ = os.RemoveAll(kept)
	}
}
