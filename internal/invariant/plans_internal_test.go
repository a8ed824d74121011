package invariant

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/testenv"
)

// A sub-query that Postgres cannot turn into a join is run for each row once its result no longer fits into memory: then a check that takes a
// minute for a million payments takes days for ten.
func TestNoLineRunsAQueryForEachRow(t *testing.T) {
	t.Parallel()
	pool := testenv.Database(t).Pool(t, "")
	pooled, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer pooled.Release()
	c := check{Sources: Sources{DB: pool, Progress: func(string) {}}, conn: pooled.Conn()}
	if err := c.gather(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, q := range queries {
		rows, _ := c.conn.Query(t.Context(), `EXPLAIN `+q.sql()) // CollectRows returns its error
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", q.name, err)
		}
		for _, line := range plan {
			if strings.Contains(line, "SubPlan ") {
				t.Errorf("%s: %s", q.name, strings.TrimSpace(line))
			}
		}
	}
}
