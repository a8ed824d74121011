package relay_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/relay"
)

// grants returns the GRANTs that a doc.go lists for a role.
func grants(t *testing.T, file, role string) (sql []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		grant, isGrant := strings.CutPrefix(line, "//\tGRANT ")
		if before, to := strings.CutSuffix(strings.TrimSpace(grant), " TO "+role+";"); isGrant && to {
			sql = append(sql, "GRANT "+before)
		}
	}
	if len(sql) == 0 {
		t.Fatalf("%s lists nothing for %s", file, role)
	}
	return sql
}

// TestGrants: a login with the listed rights and no others can do what each doc.go says.
func TestGrants(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	login := "login_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	d.exec(t, `CREATE ROLE `+login)
	t.Cleanup(func() {
		for _, sql := range []string{`DROP OWNED BY ` + login, `DROP ROLE ` + login} {
			if _, err := d.owner.Exec(context.Background(), sql); err != nil {
				t.Error(err)
			}
		}
	})
	config := d.owner.Config().Copy()
	config.ConnConfig.RuntimeParams["role"] = login
	db, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()

	grant := func(file, role string) {
		t.Helper()
		for _, sql := range grants(t, file, role) {
			d.exec(t, sql+` TO `+login)
		}
	}
	refused := func(err error) {
		t.Helper()
		var e *pgconn.PgError
		if !errors.As(err, &e) || e.Code != "42501" {
			t.Errorf("without rights: %v", err)
		}
	}
	write := func() error {
		return pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error { return outbox.Append(t.Context(), tx, events(1)) })
	}

	refused(write())
	grant("../outbox/doc.go", "writer")
	if err := write(); err != nil {
		t.Error(err)
	}
	if _, err := outbox.MakePartitions(t.Context(), db); err != nil {
		t.Error(err)
	}

	_, err = outbox.KeepPartitions(t.Context(), db, week)
	refused(err)
	grant("../outbox/doc.go", "upkeep")
	if _, err := outbox.KeepPartitions(t.Context(), db, week); err != nil {
		t.Error(err)
	}

	grant("doc.go", "relay")
	p := &picky{}
	r := start(t, db, p.open(b), nil)
	b.waitFor(t, 1)
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if _, err := relay.MeasureBacklog(t.Context(), db, "main"); err != nil {
		t.Error(err)
	}
	if _, err := relay.DeadLetters(t.Context(), db, "main", true); err != nil {
		t.Error(err)
	}
}

// TestName: without a name it is "main", and a new name starts from the beginning.
func TestName(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.commit(t, "a", "b")
	for _, c := range []struct{ name, cursor string }{{"", "main"}, {"main", "main"}, {"other", "other"}} {
		b := &broker{}
		r := start(t, d.relay, b.Open, func(r *relay.Relay) { r.Name = c.name })
		d.commit(t, "c")
		want := 1
		if c.name != "main" {
			want = ask[int](t, d, `SELECT count(*) FROM outbox_events`)
		}
		b.waitFor(t, want)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if got := len(b.received()); got != want {
			t.Errorf("relay %q sent %d events, want %d", c.name, got, want)
		}
		if n := ask[int](t, d, `SELECT count(*) FROM outbox_cursors WHERE relay = $1`, c.cursor); n != 1 {
			t.Errorf("relay %q has no cursor %q", c.name, c.cursor)
		}
	}
	if n := ask[int](t, d, `SELECT count(*) FROM outbox_cursors`); n != 2 {
		t.Errorf("%d cursors, want 2", n)
	}
}
