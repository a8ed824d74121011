package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/testenv"
)

// desk is where an operator sits: a database in which events were refused.
type desk struct {
	db  *pgxpool.Pool // as its owner
	env map[string]string
}

const secretPayload = `{"card": "4111"}` + "\x00\xff"

// newDesk has one event that was refused and one that waits behind it, one that was skipped long ago, and one of another relay.
func newDesk(t *testing.T) desk {
	t.Helper()
	db := testenv.Database(t)
	d := desk{db.Pool(t, ""), map[string]string{"DATABASE_URL": db.URLAs("relay"), "KAFKA_BROKERS": "127.0.0.1:1"}} // nobody asks Kafka
	d.exec(t, `INSERT INTO outbox_dead_letters (relay, id, xid, event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at, refusal, state, note, parked_at) VALUES
		('main', 7, '1', '00000000-0000-4000-8000-000000000007', 'payments', 'b', 'payment.completed', $1, '{}', now(), 'too large', 'parked', '', '2026-03-01 10:00Z'),
		('main', 8, '1', gen_random_uuid(), 'payments', 'b', 'payment.refunded', $1, '{}', now(), NULL, 'parked', '', now()),
		('main', 3, '1', gen_random_uuid(), 'payments', 'a', 'payment.completed', $1, '{}', now(), 'too large', 'skipped', 'ticket 1', now()),
		('other', 9, '1', gen_random_uuid(), 'accounts', 'c', 'account.opened', $1, '{}', now(), 'invalid', 'parked', '', now())`, []byte(secretPayload))
	return d
}

func (d desk) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := d.db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// run is relay dead-letters as a shell would run it.
func (d desk) run(args ...string) (stdout, stderr string, code int) {
	var out, problems bytes.Buffer
	code = program.Main(command, append([]string{"dead-letters"}, args...), func(name string) string { return d.env[name] }, &out, &problems)
	return out.String(), problems.String(), code
}

func (d desk) must(t *testing.T, args ...string) string {
	t.Helper()
	stdout, stderr, code := d.run(args...)
	if code != 0 || stderr != "" {
		t.Fatalf("%q: exit %d, %s", args, code, stderr)
	}
	return stdout
}

// state returns what became of a dead letter.
func (d desk) state(t *testing.T, relay string, id int64) (state, note string) {
	t.Helper()
	if err := d.db.QueryRow(t.Context(), `SELECT state, note FROM outbox_dead_letters WHERE relay = $1 AND id = $2`, relay, id).Scan(&state, &note); err != nil {
		t.Fatal(err)
	}
	return state, note
}

func TestListShowsRefusedEventsThatWait(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	const title = "ID  STATE    EVENT              AGGREGATE   OTHERS  REASON\n"
	for _, c := range []struct{ args, want string }{
		{"list", strings.Replace(title, "STATE    ", "STATE   ", 1) +
			"7   parked  payment.completed  payments/b  1       too large\n"},
		{"list --all", title +
			"3   skipped  payment.completed  payments/a  0       too large\n" +
			"7   parked   payment.completed  payments/b  1       too large\n"},
	} {
		if diff := cmp.Diff(c.want, d.must(t, strings.Fields(c.args)...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.args, diff)
		}
	}
	d.env["RELAY_NAME"] = "other"
	if got := d.must(t, "list"); !strings.Contains(got, "\n9   parked  account.opened  accounts/c  0       invalid\n") || strings.Count(got, "\n") != 2 {
		t.Errorf("of another relay: %s", got)
	}
	d.env["RELAY_NAME"] = "third"
	if list, all, inJSON := d.must(t, "list"), d.must(t, "list", "--all"), d.must(t, "list", "--json"); list != "no refused event waits\n" || all != "no event was refused\n" || inJSON != "[]\n" {
		t.Errorf("of a relay that was never refused anything: %q, %q, %q", list, all, inJSON)
	}
}

func TestDeadLettersAsJSONWithoutPayload(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	want := relay.DeadLetter{
		ID: 7, EventID: uuid.MustParse("00000000-0000-4000-8000-000000000007"), AggregateType: "payments", AggregateID: "b", Type: "payment.completed",
		Bytes: len(secretPayload), Refusal: "too large", WentAhead: []uuid.UUID{}, State: "parked", ParkedAt: time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC), Waiting: 2,
	}
	var listed, all []relay.DeadLetter
	var shown relay.DeadLetter
	for _, c := range []struct {
		args string
		into any
	}{{"list --json", &listed}, {"list --json --all", &all}, {"show 7", &shown}} {
		out := d.must(t, strings.Fields(c.args)...)
		if err := json.Unmarshal([]byte(out), c.into); err != nil {
			t.Fatalf("%s: %v\n%s", c.args, err, out)
		}
		if strings.Contains(out, "4111") || strings.Contains(out, "payload\"") {
			t.Errorf("%s tells the payload:\n%s", c.args, out)
		}
	}
	if diff := cmp.Diff([][]relay.DeadLetter{{want}, {want}}, [][]relay.DeadLetter{listed, {shown}}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(all) != 2 || all[0].Note != "ticket 1" {
		t.Errorf("those of the past: %+v", all)
	}
	if got := d.must(t, "show", "7", "--payload"); got != secretPayload {
		t.Errorf("payload %q, want %q", got, secretPayload)
	}
	if got := d.must(t, "show", "3"); !strings.Contains(got, `"note": "ticket 1"`) {
		t.Errorf("one that was skipped:\n%s", got)
	}
}

func TestRetryAndSkipDecideOnce(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	check := func(relay string, id int64, wantState, wantNote string) {
		t.Helper()
		if state, note := d.state(t, relay, id); state != wantState || note != wantNote {
			t.Errorf("%d of %s: %s, %q", id, relay, state, note)
		}
	}
	const none, decided = "no event with this id was refused", "no refused event with this id waits for a decision (its state was skipped)"
	for id, line := range map[string]string{"3": decided, "8": none, "9": none, "1000": none} { // was decided on, was not refused itself, is another relay's, is none
		for _, args := range [][]string{{"retry", id}, {"skip", "--reason", "x", id}} {
			if stdout, stderr, code := d.run(args...); code != 1 || stdout != "" || stderr != "relay: "+line+"\n" {
				t.Errorf("%q: exit %d, %s%s", args, code, stdout, stderr)
			}
		}
	}
	check("main", 3, "skipped", "ticket 1")
	check("main", 8, "parked", "")
	check("other", 9, "parked", "")
	const released = "released event 7 (payment.completed of payments/b): it is sent again, within a second if a relay runs\n" +
		"other events of its aggregate that wait: 1\nwhat came of it: relay dead-letters show 7\n"
	if diff := cmp.Diff(released, d.must(t, "retry", "7")); diff != "" {
		t.Errorf("retry (-want +got):\n%s", diff)
	}
	check("main", 7, "retry", "")
	if _, _, code := d.run("skip", "--reason", "x", "7"); code != 1 {
		t.Error("skipped what was to be sent again")
	}
	check("main", 7, "retry", "")
	d.env["RELAY_NAME"] = "other"
	const gaveUp = "gave up event 9 (account.opened of accounts/c) for good; the reason is kept with it\nother events of its aggregate that waited: 0\n"
	if diff := cmp.Diff(gaveUp, d.must(t, "skip", "--reason", "sent by hand, ticket 4711", "9")); diff != "" {
		t.Errorf("skip (-want +got):\n%s", diff)
	}
	check("other", 9, "skipped", "sent by hand, ticket 4711")
}

func TestDeadLetterMistakesTouchNothing(t *testing.T) {
	t.Parallel()
	nowhere := desk{env: map[string]string{"DATABASE_URL": "postgres://u:hunter2@127.0.0.1:1/x", "KAFKA_BROKERS": "127.0.0.1:1"}}
	help := func(command string) string { return " (relay dead-letters" + command + " -h explains it)" }
	for _, c := range []struct{ args, line string }{
		{"", "no command" + help("")},
		{"drop 7", `unknown command "drop"` + help("")},
		{"drop --reason x 7", `unknown command "drop"` + help("")},
		{"list 7", `unexpected argument "7"` + help(" list")},
		{"list --force", "unknown flag: --force" + help(" list")},
		{"list --payload", "unknown flag: --payload" + help(" list")},
		{"show", "ID is missing" + help(" show")},
		{"retry 7 8", `unexpected argument "8"` + help(" retry")},
		{"retry --reason x 7", "unknown flag: --reason" + help(" retry")},
		{"retry seven", "the ID must be a number shown by relay dead-letters list"},
		{"retry 0", "the ID must be a number shown by relay dead-letters list"},
		{"show 99999999999999999999", "the ID must be a number shown by relay dead-letters list"},
		{"skip 7", `required flag(s) "reason" not set` + help(" skip")},
		{"skip --reason  7", `invalid argument "" for "--reason" flag: it is kept with the event, and must not be empty` + help(" skip")},
		{"skip --reason", "flag needs an argument: --reason" + help(" skip")},
		{"skip --reason x", "ID is missing" + help(" skip")},
	} {
		var args []string
		if c.args != "" {
			args = strings.Split(c.args, " ")
		}
		stdout, stderr, code := nowhere.run(args...)
		if code != 1 || stdout != "" || stderr != "relay: "+c.line+"\n" {
			t.Errorf("%q: exit %d, %s%s", c.args, code, stdout, stderr)
		}
	}
	for args, line := range map[string]string{"list": "open the database: ", "show 7": "open the database: ", "skip --reason x 7": "open the database: "} {
		if stdout, stderr, code := nowhere.run(strings.Fields(args)...); code != 1 || stdout != "" || !strings.HasPrefix(stderr, "relay: "+line) ||
			strings.Count(stderr, "\n") != 1 || strings.Contains(stderr, "hunter2") {
			t.Errorf("%q where nobody answers: exit %d, %s%s", args, code, stdout, stderr)
		}
	}
	if _, stderr, code := (desk{}).run("list"); code != 1 || !strings.Contains(stderr, "relay: DATABASE_URL is not set") {
		t.Errorf("without variables: exit %d, %s", code, stderr)
	}
	d := newDesk(t)
	for _, args := range []string{"show 8", "show 9", "show --payload 9"} { // one that only waits; one of another relay
		if stdout, stderr, code := d.run(strings.Fields(args)...); code != 1 || stdout != "" || stderr != "relay: no event with this id was refused\n" {
			t.Errorf("%s: exit %d, %s%s", args, code, stdout, stderr)
		}
	}
}

func TestHelpOnDeadLettersHasExamples(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"-h", "--help", "list -h", "skip --help", "retry --help", "show -h", "show 7 -h"} {
		stdout, stderr, code := (desk{}).run(strings.Fields(args)...)
		if code != 0 || stderr != "" || !strings.Contains(stdout, "Examples:\n  relay dead-letters ") || !strings.Contains(stdout, "RELAY_NAME") {
			t.Errorf("%q: exit %d, %s%s", args, code, stdout, stderr)
		}
	}
	var stdout, stderr bytes.Buffer
	if code := program.Main(command, []string{"-h"}, func(string) string { return "" }, &stdout, &stderr); code != 0 || !strings.Contains(stdout.String(), "relay dead-letters") {
		t.Errorf("relay -h does not name it: exit %d, %s%s", code, stdout.String(), stderr.String())
	}
}

// What an operator types, and what a relay makes of it.
func TestRunningRelaySendsRetriedLetter(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.exec(t, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) SELECT 'payments', 'z', 'payment.completed', '{}' FROM generate_series(1, 10)`) // the cursor passes the dead letters' ids
	brokers, prefix := testenv.Brokers(t), testenv.TopicPrefix(t)
	d.env["KAFKA_BROKERS"], d.env["TOPIC_PREFIX"], d.env["ADMIN_ADDR"] = strings.Join(brokers, ","), prefix, "127.0.0.1:0"
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, func(name string) string { return d.env[name] }, &bytes.Buffer{}) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	}()
	d.must(t, "retry", "7")
	testenv.Eventually(t, time.Minute, func() error {
		for _, id := range []int64{7, 8} {
			if state, _ := d.state(t, "main", id); state != "sent" {
				return fmt.Errorf("%d is %s", id, state)
			}
		}
		return nil
	})
	if got := d.must(t, "list"); got != "no refused event waits\n" {
		t.Errorf("afterwards: %s", got)
	}
}
