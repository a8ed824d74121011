package tenantmove_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/oncepay/oncepay/internal/tenantmove"
)

const archivedDay = `INSERT INTO archived_days VALUES ('2026-01-31', 0, 0, sha256(''), now(), now())`

// A new cluster has nothing to archive, so it takes over what the source has archived.
func TestNewClusterAdoptsTheArchive(t *testing.T) {
	t.Parallel()
	source, target := newCluster(t), newCluster(t)
	tenant := source.fill("acme")
	source.passed()
	target.fill("there") // its books are younger
	source.exec(archivedDay)
	source.exec(`INSERT INTO archived_days VALUES ('2026-01-30', 1, 2, sha256('x'), now(), now())`)

	if _, err := tenantmove.Move(t.Context(), source.Pool, target.Pool, tenant, patience); err != nil {
		t.Fatal(err)
	}
	const days = `SELECT r::text FROM archived_days r ORDER BY day`
	if was, is := source.lines(days), target.lines(days); was != is || was == "" {
		t.Errorf("archived days were\n%s\nare\n%s", was, is)
	}

	// The next tenant finds both alike.
	next := source.fill("next")
	source.passed()
	if _, err := tenantmove.Move(t.Context(), source.Pool, target.Pool, next, patience); err != nil {
		t.Error(err)
	}
}

// A move that would be refused because of an archive does not stop the tenant's writes.
func TestAnotherArchiveIsNoticedBeforeTheTenantLeaves(t *testing.T) {
	t.Parallel()
	const goesOn = "days are being archived"
	for name, c := range map[string]struct {
		source, target string
		locked         bool
		want           string
	}{
		"at the target": {target: archivedDay, want: "is none at the source and 2026-01-31 at the target"},
		"another day": {source: archivedDay, target: strings.Replace(archivedDay, "31", "30", 1),
			want: "is 2026-01-31 at the source and 2026-01-30 at the target"},
		"older payments at the target": {source: archivedDay,
			target: `UPDATE payments SET processed_at = '2026-01-31T23:59:59Z'`,
			want:   "is 2026-01-31 at the source and none at the target"},
		"older entries at the target": {source: archivedDay,
			target: `ALTER TABLE ledger_entries DISABLE TRIGGER ALL; UPDATE ledger_entries SET created_at = '2026-01-31T23:59:59Z'`,
			want:   "is 2026-01-31 at the source and none at the target"},
		"one that goes on":      {target: `INSERT INTO archived_days VALUES ('2026-01-31', 0, 0, sha256(''), now(), NULL)`, want: goesOn},
		"one that has the lock": {locked: true, want: goesOn},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, target := newCluster(t), newCluster(t)
			tenant := source.fill("acme")
			target.fill("there")
			source.passed()
			source.exec(c.source)
			target.exec(c.target)
			if c.locked {
				tx, err := source.Begin(t.Context())
				if err == nil {
					t.Cleanup(func() { _ = tx.Rollback(t.Context()) })
					_, err = tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock(hashtext('oncepay archive'))`)
				}
				if err != nil {
					t.Fatal(err)
				}
			}

			_, err := tenantmove.Move(t.Context(), source.Pool, target.Pool, tenant, patience)
			if !errors.Is(err, tenantmove.ErrRefused) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if got := source.lines(`SELECT state FROM tenant_moves`); got != "" {
				t.Errorf("the tenant is %s", got)
			}
		})
	}
}
