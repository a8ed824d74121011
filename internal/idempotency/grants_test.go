package idempotency_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/testenv"
)

// A role with the GRANTs of doc.go, on the migration alone as a copier has it, can do everything.
func TestDocumentedGrantsSuffice(t *testing.T) {
	t.Parallel()
	db := testenv.EmptyDatabase(t)
	owner := openPool(t, db.URL, nil)
	migration, err := os.ReadFile("../../migrations/00002_idempotency.sql")
	if err != nil {
		t.Fatal(err)
	}
	up, _, _ := strings.Cut(string(migration), "-- +goose Down")
	mustExec(t, owner, up)
	mustExec(t, owner, `CREATE TABLE effects (key text NOT NULL)`)
	mustExec(t, owner, `GRANT INSERT ON effects TO api_read`) // a role without any other rights here

	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	grants := regexp.MustCompile(`(?m)^//\t(GRANT .*) TO app;$`).FindAllStringSubmatch(string(doc), -1)
	if len(grants) != 4 {
		t.Fatalf("doc.go has %d GRANTs", len(grants))
	}
	use := func() error { return useEverything(t, openPool(t, db.URLAs("api_read"), nil)) }
	for _, g := range grants {
		if err := use(); code(err) != "42501" {
			t.Errorf("before %s: want insufficient_privilege, got %v", g[1], err)
		}
		mustExec(t, owner, g[1]+` TO api_read`)
	}
	if err := use(); err != nil {
		t.Errorf("with all GRANTs: %v", err)
	}
}

// useEverything calls whatever touches the database. It stops at the first error.
func useEverything(t *testing.T, db *pgxpool.Pool) error {
	ctx, r := t.Context(), newRequest()
	if _, err := idempotency.ExtendRetention(ctx, db, retention); err != nil {
		return err
	}
	if _, err := idempotency.KeepPartitions(ctx, db); err != nil {
		return err
	}
	if _, err := idempotency.Run(ctx, db, r, retention, work(r)); err != nil {
		return err
	}
	_, err := idempotency.Find(ctx, db, again(r), retention)
	return err
}
