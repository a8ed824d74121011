package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/relay/kafka"
	"github.com/oncepay/oncepay/internal/testenv"
)

// lossDay is tomorrow at noon: its partition is there, and the outbox keeps it.
func lossDay() time.Time {
	return time.Now().UTC().Truncate(24 * time.Hour).Add(36 * time.Hour)
}

// newLossDesk has 250 events of two topics, one a second, all of them sent but the last ten. One is
// a dead letter, one was skipped.
func newLossDesk(t *testing.T) desk {
	t.Helper()
	db := testenv.Database(t)
	d := desk{db.Pool(t, ""), map[string]string{
		"DATABASE_URL": db.URLAs("relay"), "KAFKA_BROKERS": "127.0.0.1:1", "TOPIC_PREFIX": testenv.TopicPrefix(t),
	}}
	d.exec(t, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, created_at)
		SELECT CASE WHEN n % 5 = 0 THEN 'accounts' ELSE 'payments' END, 'a' || n % 25, 'x', '123', $1::timestamptz + n * interval '1 second'
		FROM generate_series(1, 250) n`, lossDay())
	d.exec(t, `INSERT INTO outbox_cursors (relay, last_id, seen, system_identifier, database_oid)
		SELECT 'main', 240, pg_current_snapshot(), s.system_identifier, d.oid
		FROM pg_control_system() s, pg_database d WHERE d.datname = current_database()`)
	d.exec(t, `INSERT INTO outbox_dead_letters (relay, id, xid, event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at, refusal, state, note)
		SELECT 'main', id, xid, event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at, 'too large',
			CASE id WHEN 240 THEN 'parked' ELSE 'skipped' END, 'a test' FROM outbox_events WHERE id IN (100, 240)`)
	return d
}

func (d desk) resend(args ...string) (stdout, stderr string, code int) {
	var out, problems bytes.Buffer
	code = program.Main(command, append([]string{"resend"}, args...), func(name string) string { return d.env[name] }, &out, &problems)
	return out.String(), problems.String(), code
}

// withKafka gives the desk a broker with its topics, and returns what reads them.
func (d desk) withKafka(t *testing.T) *kgo.Client {
	t.Helper()
	brokers, prefix := testenv.Brokers(t), d.env["TOPIC_PREFIX"]
	d.env["KAFKA_BROKERS"] = strings.Join(brokers, ",")
	p, _, err := kafka.Producer{Brokers: brokers, TopicPrefix: prefix, Topics: topics, Source: "/test"}.Open(t.Context(), "main", "")
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	c, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(prefix+"payments", prefix+"accounts"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	d.knows(t, c, "payments", true)
	d.knows(t, c, "accounts", true)
	return c
}

// knows waits until the broker knows of a topic, or no longer does: it agrees before that.
func (d desk) knows(t *testing.T, c *kgo.Client, topic string, want bool) {
	t.Helper()
	name := d.env["TOPIC_PREFIX"] + topic
	testenv.Eventually(t, soon, func() error {
		found, err := kadm.NewClient(c).ListTopics(t.Context(), name)
		if err == nil && found.Has(name) != want {
			err = fmt.Errorf("the broker knows of %s: %t", name, !want)
		}
		return err
	})
}

// arrived counts what is on topics.
func (d desk) arrived(t *testing.T, c *kgo.Client, topics ...string) (n int64) {
	t.Helper()
	var names []string
	for _, topic := range topics {
		names = append(names, d.env["TOPIC_PREFIX"]+topic)
	}
	ends, err := kadm.NewClient(c).ListEndOffsets(t.Context(), names...)
	if err != nil || ends.Error() != nil {
		t.Fatal(err, ends.Error())
	}
	ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
	return n
}

func TestResendCountsFirst(t *testing.T) {
	t.Parallel()
	d := newLossDesk(t) // Kafka is away
	day, prefix := lossDay(), d.env["TOPIC_PREFIX"]

	stdout, stderr, code := d.resend("--from-time", day.Format(time.RFC3339))
	at := func(second int) string { return day.Add(time.Duration(second) * time.Second).Format(time.RFC3339) }
	row := func(topic string, n, first, last int) string {
		return fmt.Sprintf("%s%s %d %d %d %d %s %s\n", prefix, topic, n, 5*n, first, last, at(first), at(last))
	}
	want := "TOPIC EVENTS BYTES FIRST ID LAST ID EARLIEST LATEST\n" +
		row("accounts", 46, 5, 235) + row("payments", 192, 1, 239) +
		"left out, behind a dead letter that waits for a decision: 1\n" +
		"left out, given up by an operator: 1\n" +
		"238 events, 1190 bytes: 0s at 1000 a second\n" +
		"each consumer's inbox must remember " + day.Format(time.DateOnly) + ": `SELECT day FROM inbox_horizon` may not be later\n" +
		"nothing was sent: --send sends them\n"
	if code != 0 || stderr != "" {
		t.Fatalf("exit %d, %s", code, stderr)
	}
	if diff := cmp.Diff(want, regexp.MustCompile(` +`).ReplaceAllString(stdout, " ")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	// As JSON, of one topic, so slowly that the outbox drops it meanwhile.
	stdout, _, code = d.resend("--from-oldest", "--topic", "accounts", "--rate", "1", "--json")
	var got resent
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 {
		t.Fatalf("exit %d, %v: %s", code, err, stdout)
	}
	if got.Sent || got.Events != 46 || got.Seconds != 46 || got.FromID != 1 || got.UntilID != 240 ||
		got.Skipped != 1 || got.KeptUntil == nil || !got.KeptUntil.Equal(day.Truncate(24*time.Hour).Add(8*24*time.Hour)) {
		t.Errorf("%+v", got)
	}
	stdout, _, _ = d.resend("--from-time", at(3600))
	if stdout != "there is nothing to send again in this range\n" {
		t.Errorf("%s", stdout)
	}
}

func TestResendSends(t *testing.T) {
	t.Parallel()
	d := newLossDesk(t)
	c := d.withKafka(t)
	if _, stderr, code := d.resend("--from-oldest"); code != 0 || d.arrived(t, c, "payments", "accounts") != 0 {
		t.Fatalf("a dry run sends: exit %d, %s", code, stderr)
	}

	stdout, stderr, code := d.resend("--from-id", "1", "--until-id", "200", "--rate", "1000", "--send")
	if code != 0 || stderr != "" || !regexp.MustCompile(`(?m)^sent 199 events in \S+$`).MatchString(stdout) {
		t.Errorf("exit %d, %s%s", code, stdout, stderr)
	}
	if n := d.arrived(t, c, "payments", "accounts"); n != 199 {
		t.Errorf("%d records", n)
	}
}

func TestResendSaysHowToGoOn(t *testing.T) {
	t.Parallel()
	d := newLossDesk(t)
	c := d.withKafka(t)
	// The topic that the first batch needs is there, one of the second is not.
	if _, err := kadm.NewClient(c).DeleteTopic(t.Context(), d.env["TOPIC_PREFIX"]+"accounts"); err != nil {
		t.Fatal(err)
	}
	d.knows(t, c, "accounts", false)
	d.exec(t, `UPDATE outbox_events SET aggregate_type = 'payments' WHERE id <= 10`)

	_, stderr, code := d.resend("--from-id", "1", "--rate", "100", "--aggregate", "a 5", "--send")
	if code != 0 {
		t.Errorf("exit %d, %s", code, stderr)
	}
	_, stderr, code = d.resend("--from-id", "1", "--rate", "100", "--send")
	want := "relay: topic " + d.env["TOPIC_PREFIX"] + "accounts: UNKNOWN_TOPIC_OR_PARTITION: This server does not host this topic-partition.; " +
		"to go on: relay resend --from-id 11 --until-id 240 --rate 100 --send\n"
	if code != 1 || stderr != want {
		t.Errorf("exit %d, %s, want %s", code, stderr, want)
	}
	if n := d.arrived(t, c, "payments"); n != 10 {
		t.Errorf("%d records", n)
	}
}

func TestResendRefusesInOneLine(t *testing.T) {
	t.Parallel()
	d := newLossDesk(t)
	today := time.Now().UTC().Format("20060102")
	d.exec(t, `DROP TABLE outbox_events_`+today)
	tomorrow := lossDay().Format(time.DateOnly)
	const oneOf = "give one of --from-id, --from-time and --from-oldest (relay resend -h explains it)"
	for args, want := range map[string]string{
		"":                                oneOf,
		"--send":                          oneOf,
		"--from-id 1 --from-oldest":       oneOf,
		"--from-id 0":                     "it must be the id of an event in outbox_events",
		"--from-time yesterday":           "it must be a day such as 2026-03-01, or a time such as 2026-03-01T12:00:00Z",
		"--from-oldest --rate 0":          "it must be a number of events a second from 1 to 1000000",
		"--from-oldest --topic refunds":   "it must be one of payments, accounts, webhook-endpoints, without the prefix",
		"--from-oldest now":               `unexpected argument "now"`,
		"--from-time 2026-03-01":          "the outbox keeps events from id 1 and " + tomorrow + " UTC on, and the range begins before; --from-oldest sends what is left",
		"--from-time 2026-03-01 --send":   "the outbox keeps events from id 1 and " + tomorrow + " UTC on, and the range begins before; --from-oldest sends what is left",
		"--from-oldest --send --rate 100": "open Kafka: ",
	} {
		stdout, stderr, code := d.resend(strings.Fields(args)...)
		if code != 1 || stdout != "" || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: exit %d, %s%s, want %s", args, code, stdout, stderr, want)
		}
	}

	d.env["RELAY_NAME"] = "other"
	want := "relay: no relay of this name has sent anything, or its cursor was deleted\n"
	if _, stderr, code := d.resend("--from-oldest"); code != 1 || stderr != want {
		t.Errorf("of another relay: exit %d, %s", code, stderr)
	}
}

// What is sent too slowly is dropped before it is sent.
func TestResendWarnsOfDroppedDays(t *testing.T) {
	t.Parallel()
	noon := time.Now().UTC().Truncate(24 * time.Hour).Add(12 * time.Hour)
	r := resendReport{
		resend: resend{rate: 1}, cfg: config.Relay{OutboxRetention: 2 * 24 * time.Hour},
		tally: relay.Tally{Topics: []relay.TopicTally{{Topic: "payments", Earliest: noon}}},
	}
	dropped := noon.Add(2*24*time.Hour + 12*time.Hour).Format(time.RFC3339)
	for days, warned := range map[int64]bool{1: false, 4: true} {
		var to bytes.Buffer
		r.tally.Topics[0].Events = days * 24 * 60 * 60
		r.print(&to)
		want := "the outbox drops the first of them from " + dropped + " on: raise OUTBOX_RETENTION of the relays first\n"
		if strings.Contains(to.String(), want) != warned {
			t.Errorf("%d days: %s", days, &to)
		}
	}
}

// A terminal's line is written over; a log gets one every ten seconds.
func TestResendProgress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		terminal bool
		want     string
	}{
		{true, "\r\x1b[Kevent 1\r\x1b[Kevent 2\n"},
		{false, "event 1\nevent 2\n"},
	} {
		var to bytes.Buffer
		p := newProgress(&to)
		p.terminal = c.terminal
		p.show("too early")
		for i := range 2 {
			p.shown = p.shown.Add(-p.every)
			p.show("event %d", i+1)
			p.show("too early")
		}
		p.end()
		p.end()
		if to.String() != c.want {
			t.Errorf("%q, want %q", &to, c.want)
		}
	}
}
