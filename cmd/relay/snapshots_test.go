package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/telemetry"
	"github.com/oncepay/oncepay/internal/testenv"
)

// report holds a snapshot until end is called.
func report(t *testing.T, db *testenv.DB) (pid int, end func()) {
	t.Helper()
	cfg, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["application_name"] = "a report"
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(t.Context(), `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM payments`)
	if err != nil {
		t.Fatal(err)
	}
	return int(conn.PgConn().PID()), func() { _ = conn.Close(t.Context()) }
}

func TestOldSnapshotIsShown(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	env := map[string]string{
		"DATABASE_URL": db.URLAs("relay"), "KAFKA_BROKERS": strings.Join(testenv.Brokers(t), ","),
		"TOPIC_PREFIX": testenv.TopicPrefix(t), "ADMIN_ADDR": "127.0.0.1:0",
	}
	relay := start(t, func(name string) string { return env[name] })
	shown := func(lines ...string) {
		t.Helper()
		testenv.Eventually(t, soon, func() error { return relay.shows(lines...) })
	}

	_, end := report(t, db)
	shown(`oldest_snapshot_seconds{kind="session"} [1-9].*`,
		`oldest_snapshot_transactions{kind="session"} [0-9]+`)
	end()
	shown(`oldest_snapshot_seconds{kind="session"} 0`)
}

// TestOldSnapshotIsNamedOnce: the log says who holds it, when it is found old for the first time.
func TestOldSnapshotIsNamedOnce(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	var log buffer
	const old = 200 * time.Millisecond
	u := &upkeep{
		pool: db.Pool(t, "relay"), metrics: telemetry.NewRelay(telemetry.NewRegistry()),
		log: telemetry.Logger(&log, slog.LevelInfo, "json"), oldAfter: old,
	}
	named := func() (lines []string) { // slots and standbys are other tests'
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, `"kind":"session"`) {
				lines = append(lines, line)
			}
		}
		return lines
	}

	began := time.Now()
	pid, end := report(t, db)
	defer end()
	testenv.Eventually(t, soon, func() error {
		u.measureSnapshots(t.Context())
		if len(named()) == 0 {
			return fmt.Errorf("the log names no session after %s", time.Since(began))
		}
		return nil
	})
	if time.Since(began) < old {
		t.Errorf("it was called old after %s", time.Since(began))
	}
	for range 3 {
		u.measureSnapshots(t.Context())
	}

	var line struct {
		Level, Msg, Name string
		PID              int
	}
	if err := json.Unmarshal([]byte(named()[0]), &line); err != nil {
		t.Fatal(err)
	}
	if len(named()) != 1 || line.Level != "WARN" || line.PID != pid ||
		!strings.HasPrefix(line.Msg, "an old snapshot is held") ||
		!strings.HasPrefix(line.Name, "a report (") {
		t.Errorf("pid %d holds it, and the log says\n%s", pid, log.String())
	}
}
