package relay_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/relay"
)

// documented returns the statements that docs/operating.md shows under "After a restore", by the words that a block begins with.
func documented(t *testing.T, beginnings ...string) (statements []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## After a restore\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, beginning := range beginnings {
		_, block, found := strings.Cut(section, "\n\n       "+beginning)
		if !found {
			t.Fatalf("docs/operating.md has no block that begins with %q under \"After a restore\"", beginning)
		}
		block, _, _ = strings.Cut(block, "\n\n")
		statements = append(statements, beginning+block)
	}
	return statements
}

// refuses fails the test unless a relay sees that the database is not the one that it left.
func refuses(t *testing.T, d database, b *broker) {
	t.Helper()
	refused := relay.Relay{DB: d.relay, Open: b.Open, Name: "main"}
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if err := refused.Run(ctx); !errors.Is(err, relay.ErrRestored) {
		t.Errorf("Run returned %v", err)
	}
}

func TestDocumentedRestoreLosesNothing(t *testing.T) {
	t.Parallel()
	t.Run("of the same cluster, which went back", func(t *testing.T) {
		t.Parallel()
		d, b := newDatabase(t), &broker{}
		want := d.commit(t, "a")
		publish(t, d, b, 1)
		kept := progressOf(t, d)
		kept.Batches += 100
		kept.Last += 100
		b.kept = &kept
		want = append(want, d.commit(t, "a", "b")...)
		refuses(t, d, b)
		for _, sql := range documented(t, "SELECT relay,", "UPDATE outbox_cursors SET epoch") {
			d.exec(t, sql)
		}
		publish(t, d, b, 3)
		complete(t, b.received(), want)
	})
	t.Run("in another cluster", func(t *testing.T) {
		t.Parallel()
		d, b := newDatabase(t), &broker{}
		before := d.commit(t, "a", "b")
		open := d.begin(t)
		late := changeAll(t, open, "c")
		between := d.commit(t, "d")
		publish(t, d, b, 3)
		commit(t, open) // a straggler that was not sent
		above := d.commit(t, "a")
		// What a dump has is the old cluster's, where transaction ids were higher.
		d.exec(t, `UPDATE outbox_events SET xid = (xid::text::bigint + 1000000)::text::xid8`)
		d.exec(t, `UPDATE outbox_cursors SET system_identifier = system_identifier + 1, database_oid = 1,
			seen = (SELECT format('%s:%s:%s', pg_snapshot_xmin(seen)::text::bigint + 1000000, pg_snapshot_xmax(seen)::text::bigint + 1000000,
				(SELECT string_agg((x::text::bigint + 1000000)::text, ',') FROM pg_snapshot_xip(seen) x))::pg_snapshot)`)
		refuses(t, d, b)
		for _, sql := range documented(t, "UPDATE outbox_cursors c SET chunk_after", "WITH letters AS", "UPDATE outbox_cursors SET seen") {
			d.exec(t, sql)
		}
		publish(t, d, b, 6)
		again := b.ids()[3:]
		for _, id := range slices.Concat(late, above) {
			if !slices.Contains(again, id) {
				t.Errorf("event %s is lost", id)
			}
		}
		if slices.ContainsFunc(before, func(id uuid.UUID) bool { return slices.Contains(again, id) }) {
			t.Errorf("what is below the straggler was sent again: %v of %v and %v", again, before, between)
		}
		// And from here on the cursor is this cluster's.
		d.commit(t, "a")
		publish(t, d, b, 7)
		if got := len(b.received()); got != 7 {
			t.Errorf("%d events were sent, want 7", got)
		}
	})
}
