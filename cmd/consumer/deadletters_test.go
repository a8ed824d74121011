package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/testenv"
)

const secretPayload = `{"card": "4111"}` + "\x00\xff"

func TestDeadLettersAreListedAndDecidedOn(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	owner := db.Pool(t, "")
	_, err := owner.Exec(t.Context(), `INSERT INTO inbox_dead_letters (id, consumer, event_id, event_type, sequence, topic, partition, "offset", key, headers, payload, reason, tries, state, note)
		OVERRIDING SYSTEM VALUE VALUES
		(7, 'statements', '00000000-0000-4000-8000-000000000007', 'payment.refunded', 1, 'oncepay.payments', 3, 41, 'b', '{ce_type,payment.refunded}', $1, 'unknown event type', 5, 'parked', ''),
		(8, 'statements', gen_random_uuid(), 'payment.completed', 2, 'oncepay.payments', 3, 42, 'b', '{}', $1, NULL, 0, 'parked', ''),
		(3, 'statements', gen_random_uuid(), 'payment.completed', 1, 'oncepay.payments', 1, 2, 'a', '{}', $1, 'malformed', 5, 'skipped', 'ticket 1'),
		(9, 'another', gen_random_uuid(), 'account.opened', 1, 'oncepay.accounts', 0, 0, 'c', '{}', $1, 'malformed', 5, 'parked', '')`, []byte(secretPayload))
	if err != nil {
		t.Fatal(err)
	}
	getenv := env("DATABASE_URL", db.URLAs("consumer"), "KAFKA_BROKERS", "127.0.0.1:1") // nobody asks Kafka
	must := func(args ...string) string {
		t.Helper()
		stdout, stderr, code := shell(getenv, append([]string{"dead-letters"}, args...)...)
		if code != 0 || stderr != "" {
			t.Fatalf("%q: exit %d, %s", args, code, stderr)
		}
		return stdout
	}
	state := func(id int) (state string) {
		t.Helper()
		if err := owner.QueryRow(t.Context(), `SELECT state || ' ' || note FROM inbox_dead_letters WHERE id = $1`, id).Scan(&state); err != nil {
			t.Fatal(err)
		}
		return state
	}

	const list = "ID  STATE   EVENT             RECORD AND KEY             OTHERS  REASON\n" +
		`7   parked  payment.refunded  oncepay.payments/3/41 "b"  1       unknown event type` + "\n"
	if diff := cmp.Diff(list, must("list")); diff != "" {
		t.Error(diff)
	}
	if all := must("list", "--all"); !strings.Contains(all, "\n3   skipped ") || strings.Contains(all, "\n9 ") || strings.Contains(all, "\n8 ") {
		t.Errorf("all: %s", all)
	}
	var shown inbox.DeadLetter
	if out := must("show", "7"); json.Unmarshal([]byte(out), &shown) != nil || shown.ID != 7 || shown.Waiting != 2 || strings.Contains(out, "4111") {
		t.Errorf("show: %s", out)
	}
	if got := must("show", "--payload", "7"); got != secretPayload {
		t.Errorf("payload %q", got)
	}

	const none, decided = "there is no dead letter with this id", "no dead letter with this id waits for a decision (its state was skipped)"
	for id, line := range map[string]string{"3": decided, "8": none, "9": none, "1000": none} { // was decided on, only waits, is another consumer's, is none
		for _, args := range [][]string{{"retry", id}, {"skip", "--reason", "x", id}} {
			if stdout, stderr, code := shell(getenv, append([]string{"dead-letters"}, args...)...); code != 1 || stdout != "" || stderr != "consumer: "+line+"\n" {
				t.Errorf("%q: exit %d, %s%s", args, code, stdout, stderr)
			}
		}
	}
	for _, args := range []string{"show 8", "show 9", "show --payload 9"} {
		if _, stderr, code := shell(getenv, append([]string{"dead-letters"}, strings.Fields(args)...)...); code != 1 || stderr != "consumer: there is no dead letter with this id\n" {
			t.Errorf("%s: exit %d, %s", args, code, stderr)
		}
	}
	const released = `released event 7 (payment.refunded of oncepay.payments/3/41 "b"): it is processed, within a second if a consumer runs` +
		"\nother events of its aggregate that wait: 1\nwhat came of it: consumer dead-letters show 7\n"
	if diff := cmp.Diff(released, must("retry", "7")); diff != "" {
		t.Errorf("retry (-want +got):\n%s", diff)
	}
	if got := state(7); got != "retry " {
		t.Errorf("state %q", got)
	}
	if _, err := owner.Exec(t.Context(), `UPDATE inbox_dead_letters SET state = 'parked' WHERE id = 7`); err != nil {
		t.Fatal(err)
	}
	const gaveUp = "{\n  \"id\": 7,\n  \"decision\": \"skip\"\n}\n"
	if diff := cmp.Diff(gaveUp, must("skip", "--reason", "booked by hand", "7", "--json")); diff != "" {
		t.Errorf("skip (-want +got):\n%s", diff)
	}
	if got := fmt.Sprint(state(7), state(9)); got != "skipped booked by handparked " {
		t.Errorf("states %q", got)
	}
	if got := must("list"); got != "no dead letter waits\n" {
		t.Errorf("afterwards: %s", got)
	}
}

func TestHelpOnDeadLettersHasExamples(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	code := program.Main(consumer, []string{"dead-letters", "-h"}, env(), &stdout, &stderr)
	if code != 0 || stderr.Len() > 0 || !strings.Contains(stdout.String(), "Examples:\n  consumer dead-letters ") {
		t.Errorf("exit %d, %s%s", code, stdout.String(), stderr.String())
	}
	if stdout, _, _ := shell(env(), "-h"); !strings.Contains(stdout, "consumer dead-letters") {
		t.Errorf("consumer -h does not name it: %s", stdout)
	}
}
