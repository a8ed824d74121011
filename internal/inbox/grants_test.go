package inbox_test

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/testenv"
)

// grants returns what doc.go grants to a role.
func grants(t *testing.T, role string, want int) (grants []string) {
	t.Helper()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile(`(?m)^//\t(GRANT .*) TO `+role+`;$`).FindAllStringSubmatch(string(doc), -1) {
		grants = append(grants, found[1])
	}
	if len(grants) != want {
		t.Fatalf("doc.go has %d GRANTs for %s", len(grants), role)
	}
	return grants
}

// newCopy is a desk whose database has this package's migration alone, and roles without rights.
func newCopy(t *testing.T) *desk {
	t.Helper()
	d := &desk{bench: newBench(t, testenv.Brokers(t), 1)}
	d.db = testenv.EmptyDatabase(t)
	d.owner = d.db.Pool(t, "")
	migration, err := os.ReadFile("../../migrations/00005_inbox.sql")
	if err != nil {
		t.Fatal(err)
	}
	up, _, _ := strings.Cut(string(migration), "-- +goose Down")
	d.must(t, up)
	d.must(t, `CREATE TABLE applied (i bigint GENERATED ALWAYS AS IDENTITY, event_id uuid NOT NULL, key text NOT NULL, sequence bigint NOT NULL)`)
	d.must(t, `GRANT ALL ON applied TO api_read`)
	d.pool = d.db.Pool(t, "api_read")
	return d
}

func (d *desk) must(t *testing.T, sql string) {
	t.Helper()
	if _, err := d.owner.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

// Each right that doc.go lists is needed, and with all of them everything works.
func TestDocumentedGrants(t *testing.T) {
	t.Parallel()
	d := newCopy(t)
	day := d.numbered(0, "old", 1, "ce_time", ago(3).Format(time.RFC3339Nano)) // needs a partition
	d.produce(t, day, d.numbered(0, "a", 1, poisoned...), d.numbered(0, "a", 2))
	c := d.consumer(t)
	c.DB = d.pool
	for _, g := range grants(t, "consumer", 5) {
		if err := use(t, d.pool); code(err) != "42501" {
			t.Errorf("before %s: want insufficient_privilege, got %v", g, err)
		}
		d.must(t, g+` TO api_read`)
	}
	if err := use(t, d.pool); err != nil {
		t.Error(err)
	}

	d.start(t, c)
	d.wantApplied(t, map[string][]int64{"old": {1}})
	l := d.letters(t, 1)[0]
	d.atLeast(t, inbox.Parked, 2)
	testenv.Eventually(t, waitLimit, func() error { // the partitions are kept
		var noted int
		err := d.owner.QueryRow(t.Context(), `SELECT count(*) FROM inbox_consumers`).Scan(&noted)
		return want(err, 1, noted)
	})
	d.cured.Store(true)
	if err := retry(t.Context(), d.pool, l.ID); err != nil {
		t.Fatal(err)
	}
	d.wantApplied(t, map[string][]int64{"old": {1}, "a": {1, 2}})
	if strings.Contains(d.logged(), "permission denied") {
		t.Error(d.logged())
	}
}

func TestDocumentedGrantsOfOperators(t *testing.T) {
	t.Parallel()
	d := newCopy(t)
	d.must(t, `INSERT INTO inbox_dead_letters (consumer, event_id, event_type, sequence, topic, partition, "offset", key, headers, payload, reason)
		SELECT 'test', gen_random_uuid(), 'thing.done', i, 'things', 0, i, 'a', '{}', '', 'poisoned' FROM generate_series(1, 2) i`)
	decide := func() error {
		letters, err := inbox.DeadLetters(t.Context(), d.pool, "test", true)
		if err != nil {
			return err
		}
		if _, err := inbox.FindDeadLetter(t.Context(), d.pool, "test", letters[0].ID); err != nil {
			return err
		}
		return errors.Join(inbox.SkipDeadLetter(t.Context(), d.pool, "test", letters[0].ID, "gone"), retry(t.Context(), d.pool, letters[1].ID))
	}
	for _, g := range grants(t, "operator", 2) {
		if err := decide(); code(err) != "42501" {
			t.Errorf("before %s: want insufficient_privilege, got %v", g, err)
		}
		d.must(t, g+` TO api_read`)
		d.must(t, `UPDATE inbox_dead_letters SET state = 'parked'`)
	}
	if err := decide(); err != nil {
		t.Error(err)
	}
}

// use calls what needs each of the consumer's rights, in the order of doc.go. It stops at the first error.
func use(t *testing.T, db *pgxpool.Pool) error {
	return pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		for _, sql := range []string{
			`INSERT INTO inbox_events VALUES ('test', gen_random_uuid(), now()::date) ON CONFLICT DO NOTHING RETURNING event_id`,
			`UPDATE inbox_dead_letters SET state = state WHERE false`,
			`DELETE FROM inbox_sequences WHERE false`,
			`SELECT FROM inbox_horizon`,
			`SELECT inbox_events_make_partitions('{}'), inbox_events_drop_partitions('test', NULL)`,
		} {
			if _, err := tx.Exec(t.Context(), `SAVEPOINT before`); err != nil {
				return err
			}
			_, err := tx.Exec(t.Context(), sql)
			if code(err) == "23514" { // no partition yet: the right is there
				_, err = tx.Exec(t.Context(), `ROLLBACK TO before`)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func code(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}
