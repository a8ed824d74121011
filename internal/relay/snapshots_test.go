package relay_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/testenv"
)

// TestOldSnapshotIsSeenWithoutRights: an idle session that only reads is found, with its pid and name, until it ends.
func TestOldSnapshotIsSeenWithoutRights(t *testing.T) {
	t.Parallel()
	d, s := newDatabase(t), relay.Snapshots{}
	session := func(when string, is func(relay.Snapshot) bool) {
		t.Helper()
		testenv.Eventually(t, soon, func() error {
			found, err := s.Oldest(t.Context(), d.relay)
			if err == nil && !is(found["session"]) {
				err = fmt.Errorf("%s: %+v", when, found)
			}
			return err
		})
	}

	reads, err := d.owner.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer reads.Rollback(t.Context())
	if _, err := reads.Exec(t.Context(), `SET LOCAL application_name = 'a report'`); err != nil {
		t.Fatal(err)
	}
	if _, err := reads.Exec(t.Context(), `SELECT FROM outbox_events`); err != nil {
		t.Fatal(err)
	}
	pid := int32(reads.Conn().PgConn().PID())
	isReport := func(f relay.Snapshot) bool {
		return f.Kind == "session" && f.PID == pid && strings.HasPrefix(f.Name, "a report (") && f.Seen > 50*time.Millisecond
	}

	// What is newer than a transaction that is writing is held up by that one.
	for range 3 {
		d.commit(t, "a")
	}
	session("while it reads", func(f relay.Snapshot) bool { return isReport(f) && f.Transactions >= 3 })
	writes := d.begin(t)
	changeAll(t, writes, "a")
	newer, err := d.owner.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer newer.Rollback(t.Context())
	if _, err := newer.Exec(t.Context(), `SELECT FROM outbox_events`); err != nil {
		t.Fatal(err)
	}
	session("with another", isReport)

	if err := reads.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	other := int32(newer.Conn().PgConn().PID())
	session("when it has ended", func(f relay.Snapshot) bool { return f.PID != pid })
	commit(t, writes)
	session("when the writer has ended", func(f relay.Snapshot) bool { return f.PID == other })
}
