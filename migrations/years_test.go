package migrations_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/testenv"
)

// An upgrade of the operating system may change the order of a language, and with it corrupt every
// index that is in that order. "C" is the order of the bytes: it never changes.
const languageIndexes = `
SELECT i.indexrelid::regclass::text || ' (' || a.attname || ')'
FROM pg_index i
JOIN pg_class c ON c.oid = i.indrelid AND c.relkind IN ('r', 'p')
JOIN pg_attribute a ON a.attrelid = i.indexrelid
JOIN pg_collation l ON l.oid = a.attcollation
WHERE c.relnamespace = 'public'::regnamespace AND l.collname <> 'C'
ORDER BY 1`

// An UPDATE or DELETE of a table in a publication fails unless its rows can be told apart.
const unidentified = `
SELECT c.oid::regclass::text
FROM pg_class c
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND c.relreplident <> 'f'
  AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
ORDER BY 1`

func TestIndexesAndRowsOutliveUpgrades(t *testing.T) {
	t.Parallel()
	owner := testenv.Database(t).Pool(t, "")
	for what, sql := range map[string]string{
		"in the order of a language":       languageIndexes,
		"without key and replica identity": unidentified,
	} {
		rows, _ := owner.Query(t.Context(), sql)
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(found) > 0 {
			t.Errorf("%s: %v %v", what, found, err)
		}
	}
}

// A publication of all tables, as a logical replica needs it, must stop nothing.
func TestEveryTableCanBePublished(t *testing.T) {
	t.Parallel()
	owner := testenv.Database(t).Pool(t, "")
	for _, statement := range []string{
		`CREATE PUBLICATION everything FOR ALL TABLES`,
		`SELECT outbox_events_make_partitions(9), idempotency_keys_make_partitions(9), inbox_events_make_partitions(ARRAY[current_date + 1])`,
		`INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, created_at)
		 SELECT 'payments', 'a', 'made', '', now() + d * interval '1 day' FROM generate_series(0, 9) d`,
		`DELETE FROM outbox_events`,
		`SELECT outbox_events_drop_partitions('1 hour'), idempotency_keys_drop_partitions(), inbox_events_drop_partitions('statements', 1)`,
	} {
		if _, err := owner.Exec(t.Context(), statement); err != nil {
			t.Errorf("%s: %v", statement, err)
		}
	}
}

// LIKE copies no options, so each function must give them to the partitions that it makes.
const partitionsWithoutOptions = `
SELECT count(*) FILTER (WHERE NOT c.reloptions @> ARRAY['autovacuum_vacuum_insert_threshold=-1', 'autovacuum_freeze_min_age=0']
    OR c.reloptions IS NULL), count(*)
FROM pg_class c WHERE c.relkind = 'r' AND c.relispartition`

func TestPartitionsAreNotVacuumedForNewRows(t *testing.T) {
	t.Parallel()
	owner := testenv.Database(t).Pool(t, "")
	exec(t, owner, `SELECT inbox_events_make_partitions(ARRAY[current_date])`)

	var without, all int
	if err := owner.QueryRow(t.Context(), partitionsWithoutOptions).Scan(&without, &all); err != nil {
		t.Fatal(err)
	}
	if without > 0 || all < 17 {
		t.Errorf("%d of %d partitions are without options", without, all)
	}
}
