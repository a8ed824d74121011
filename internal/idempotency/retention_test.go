package idempotency_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/idempotency"
)

// A deploy with a shorter retention, or a relay that is configured to one, must not make a key pay twice within the time that
// its client was told.
func TestAPromisedRetentionOutlivesProgramsThatAreConfiguredToLess(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	for _, c := range []struct{ configured, kept time.Duration }{
		{240 * time.Hour, 240 * time.Hour}, {24 * time.Hour, 240 * time.Hour}, {0, 240 * time.Hour}, {241 * time.Hour, 241 * time.Hour},
	} {
		kept, err := idempotency.Promise(t.Context(), d.write, c.configured)
		if err != nil || kept != c.kept {
			t.Errorf("configured to %s: kept for %s, want %s (%v)", c.configured, kept, c.kept, err)
		}
	}
	makeDay(t, d.owner, -11) // 241 h are 11 days
	makeDay(t, d.owner, -13)
	if p, err := idempotency.KeepPartitions(t.Context(), d.owner, 24*time.Hour); err != nil || p.Dropped != 1 {
		t.Errorf("%+v, %v: want the day dropped that nobody promised, and no other", p, err)
	}
}

func TestManyRowsInTheDefaultPartitionAreLeftToAnOperator(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	dropDay(t, d.owner, 3)
	insert := `INSERT INTO idempotency_keys (tenant_id, client_id, key, key_hash, day, fingerprint, fingerprint_version, request_id, status, content_type, location, body)
		SELECT gen_random_uuid(), gen_random_uuid(), i::text, substr(sha256(i::text::bytea), 1, 16), (now() AT TIME ZONE 'utc')::date + 3, sha256('')::bytea, 1, '', 201, '', '', ''
		FROM generate_series(1, 3) i`
	if _, err := d.owner.Exec(t.Context(), insert); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ most, made, left int }{{2, 0, 3}, {3, 1, 0}} {
		var made, left int
		err := d.owner.QueryRow(t.Context(), fmt.Sprintf(`SELECT made, default_rows FROM idempotency_keys_make_partitions(7, %d)`, c.most)).Scan(&made, &left)
		if err != nil || made != c.made || left != c.left {
			t.Errorf("at most %d: made %d, left %d rows (%v), want %d and %d", c.most, made, left, err, c.made, c.left)
		}
	}
}
