package ops

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/testenv"
)

// TestKafkaLosesEvents: all records are deleted under load, and sent again beside the relay. Later
// once more, with an interrupt, for a consumer that knows nothing.
func TestKafkaLosesEvents(t *testing.T) {
	t.Parallel()
	s := open(t)
	kafka := s.kafka()
	var first time.Time
	if err := s.owner.QueryRow(t.Context(), `SELECT min(created_at) FROM outbox_events`).Scan(&first); err != nil {
		t.Fatal(err)
	}
	from := []string{"resend", "--from-time", first.Format(time.RFC3339Nano)}

	kafka.lose()
	dry := current.run(t, "relay", s.env["relay"], from, nil)
	if dry.code != 0 || !strings.HasSuffix(dry.stdout, "\nnothing was sent: --send sends them\n") {
		t.Fatalf("dry run: %+v", dry)
	}
	got := current.run(t, "relay", s.env["relay"], append(from, "--rate", "100000", "--send"), nil)
	if got.code != 0 || !strings.Contains(got.stdout, "\nsent ") {
		t.Fatalf("resend: %+v", got)
	}
	s.settle()
	s.wantStatements(s)

	// Nobody pays any more. Slowly, so that the interrupt comes in between. Consumers may have the last
	// events before the cursor has passed them, and what it has not passed is not sent again.
	s.none(`SELECT max(id) - (SELECT last_id FROM outbox_cursors) FROM outbox_events`)
	kafka.lose()
	total := s.count(`SELECT count(*) FROM outbox_events`)
	goesOn := s.interrupt(append(from, "--rate", "2", "--send"), func() error {
		if kafka.records() == 0 {
			return errors.New("nothing is sent")
		}
		return nil
	})
	if sent := kafka.records(); sent >= total {
		t.Fatalf("%d of %d were sent before the interrupt", sent, total)
	}
	got = current.run(t, "relay", s.env["relay"], append(goesOn, "--rate", "100000"), nil)
	if sent := kafka.records(); got.code != 0 || sent != total {
		t.Fatalf("%d records of %d events: %+v", sent, total, got)
	}

	s.wantStatements(s) // the consumer that has had everything twice before
	kafka.wantNoLag(s.group())
	s.wantStatements(s.emptyConsumer(total))
}

// emptyConsumer starts a consumer with an empty inbox, and returns its shop when it has every event,
// each aggregate's in order.
func (s *shop) emptyConsumer(total int) *shop {
	s.t.Helper()
	db := testenv.Database(s.t)
	fresh := &shop{t: s.t, db: db, owner: db.Pool(s.t, "")}
	s.env["consumer"] = append(s.env["consumer"], // of two, the last counts
		"DATABASE_URL="+db.URLAs("consumer"), "CONSUMER_GROUP="+s.group()+"-fresh")
	s.start(current, "consumer")
	fresh.none(`SELECT $1 - count(*) FROM inbox_events`, total)
	fresh.none(`SELECT count(*) FROM inbox_dead_letters`)

	file := filepath.Join(s.dir, current.name, fmt.Sprintf("consumer-%d.log", len(s.all)-1))
	log, err := os.ReadFile(file)
	if err != nil || !bytes.Contains(log, []byte("consumer started")) ||
		bytes.Contains(log, []byte("out of sequence")) {
		s.t.Errorf("the new consumer, %v:\n%s", err, log)
	}
	return fresh
}

// wantStatements compares the statements of a consumer with the balances.
func (s *shop) wantStatements(of *shop) {
	s.t.Helper()
	balances := func(db *shop, query string) (all string) {
		if err := db.owner.QueryRow(s.t.Context(), query).Scan(&all); err != nil {
			s.t.Fatal(err)
		}
		return all
	}

	want := balances(s, `SELECT string_agg(id || ' ' || balance_minor, E'\n' ORDER BY id)
		FROM accounts WHERE entry_count > 0`)
	got := balances(of, `SELECT string_agg(account_id || ' ' || balance, E'\n' ORDER BY account_id)
		FROM (SELECT account_id, sum(credits_minor - debits_minor) balance FROM statements GROUP BY 1) s`)
	if got != want {
		s.t.Errorf("the statements say\n%s\nand the accounts\n%s", got, want)
	}
}

// group is the consumer group of the shop.
func (s *shop) group() string {
	return strings.TrimPrefix(s.env["consumer"][3], "CONSUMER_GROUP=")
}

var toGoOn = regexp.MustCompile(`^relay: interrupted; to go on: relay (resend --from-id .*)\n$`)

// interrupt runs the relay's command, as a terminal's Ctrl-C ends it when ready returns nil. It
// returns the command line that goes on.
func (s *shop) interrupt(args []string, ready func() error) []string {
	s.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(s.t.Context(), current.path(s.t, "relay"), args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = s.env["relay"], &stdout, &stderr
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	testenv.Eventually(s.t, soon, ready)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		s.t.Fatal(err)
	}

	err := cmd.Wait()
	line := toGoOn.FindStringSubmatch(stderr.String())
	if cmd.ProcessState.ExitCode() != 1 || line == nil || stdout.Len() > 0 {
		s.t.Fatalf("interrupted: %v, %s%s", err, &stdout, &stderr)
	}
	return strings.Fields(line[1])
}

// topics are those of a shop, as an administrator of Kafka sees them.
type topics struct {
	t     *testing.T
	admin *kadm.Client
	names []string
}

func (s *shop) kafka() topics {
	s.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(testenv.Brokers(s.t)...))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(client.Close)

	prefix := strings.TrimPrefix(s.env["relay"][2], "TOPIC_PREFIX=")
	return topics{s.t, kadm.NewClient(client), []string{prefix + "payments", prefix + "accounts"}}
}

// lose deletes all that the topics hold.
func (k topics) lose() {
	k.t.Helper()
	ends, err := k.admin.ListEndOffsets(k.t.Context(), k.names...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		k.t.Fatal(err)
	}

	gone, err := k.admin.DeleteRecords(k.t.Context(), ends.Offsets())
	if err == nil {
		err = gone.Error()
	}
	if err != nil {
		k.t.Fatal(err)
	}
}

// records counts what the topics hold.
func (k topics) records() (n int) {
	k.t.Helper()
	starts, err := k.admin.ListStartOffsets(k.t.Context(), k.names...)
	ends, failed := k.admin.ListEndOffsets(k.t.Context(), k.names...)
	if err := errors.Join(err, failed, starts.Error(), ends.Error()); err != nil {
		k.t.Fatal(err)
	}
	ends.Each(func(o kadm.ListedOffset) { n += int(o.Offset) })
	starts.Each(func(o kadm.ListedOffset) { n -= int(o.Offset) })
	return n
}

// wantNoLag waits until a group has read the topics.
func (k topics) wantNoLag(group string) {
	k.t.Helper()
	testenv.Eventually(k.t, soon, func() error {
		lags, err := k.admin.Lag(k.t.Context(), group)
		if err == nil {
			err = lags.Error()
		}
		if err == nil && lags[group].Lag.Total() != 0 {
			err = fmt.Errorf("%s lags by %d", group, lags[group].Lag.Total())
		}
		return err
	})
}
