package testenv

import "testing"

// A run that began before midnight has a template of yesterday.
func TestTemplateOfYesterdayServesToday(t *testing.T) {
	t.Parallel()
	db := Database(t)
	const yesterdays = `
		DO $$ BEGIN SET LOCAL timezone = 'UTC';
		EXECUTE format('CREATE TABLE idempotency_keys_%s PARTITION OF idempotency_keys FOR VALUES FROM (%L) TO (%L)',
			to_char(now() - interval '1 day', 'YYYYMMDD'), now()::date - 1, now()::date);
		EXECUTE format('CREATE TABLE outbox_events_%s PARTITION OF outbox_events FOR VALUES FROM (%L) TO (%L)',
			to_char(now() - interval '1 day', 'YYYYMMDD'), now()::date - 1, now()::date);
		END $$`
	for _, statement := range []string{yesterdays, todaysPartitions} {
		if err := execute(t.Context(), db.URL, statement); err != nil {
			t.Fatal(err)
		}
	}

	for _, parent := range []string{"idempotency_keys", "outbox_events"} {
		var first string
		var days int
		if err := db.Pool(t, "").QueryRow(t.Context(), `
			SELECT min(inhrelid::regclass::text), count(*) FROM pg_inherits
			WHERE inhparent = $1::text::regclass`, parent).Scan(&first, &days); err != nil {
			t.Fatal(err)
		}

		var today string
		if err := db.Pool(t, "").QueryRow(t.Context(), `
			SELECT $1 || to_char(now() AT TIME ZONE 'utc', '_YYYYMMDD')`, parent).Scan(&today); err != nil {
			t.Fatal(err)
		}
		if first != today || days != 8 {
			t.Errorf("%d partitions from %s on, want 8 from %s on", days, first, today)
		}
	}
}
