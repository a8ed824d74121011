package main

import (
	"context"
	"strings"
	"testing"

	"github.com/oncepay/oncepay/internal/testenv"
)

func TestLockWaitsOfOthersAreShown(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	env := map[string]string{"DATABASE_URL": db.URLAs("relay"), "KAFKA_BROKERS": strings.Join(testenv.Brokers(t), ","),
		"TOPIC_PREFIX": testenv.TopicPrefix(t), "ADMIN_ADDR": "127.0.0.1:0"}
	relay := start(t, func(name string) string { return env[name] })
	shown := func(lines ...string) {
		t.Helper()
		testenv.Eventually(t, soon, func() error { return relay.shows(lines...) })
	}
	shown("db_lock_waiting_sessions 0", "db_lock_oldest_wait_seconds 0")

	owner := db.Pool(t, "")
	holder, err := owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(context.Background())
	if _, err := holder.Exec(t.Context(), `LOCK TABLE accounts`); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		_, err := owner.Exec(t.Context(), `SELECT FROM accounts`)
		waited <- err
	}()
	shown("db_lock_waiting_sessions 1", `db_lock_oldest_wait_seconds [0-9.e-]*[1-9].*`)

	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Error(err)
	}
	shown("db_lock_waiting_sessions 0", "db_lock_oldest_wait_seconds 0")
}
