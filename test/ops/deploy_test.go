// Package ops tests what operators do, with the real programs: deploys under load, the schema first,
// the programs first, and a release that is taken back; Postgres restored, upgraded, or moved to another
// cluster. The next release is this checkout with one more migration.
package ops

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/migrations"
)

var built string // where the releases are

func TestMain(m *testing.M) {
	var err error
	if built, err = os.MkdirTemp("", "oncepay-ops-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}

	code := m.Run()
	_ = os.RemoveAll(built) // temporary
	os.Exit(code)
}

// TestSchemaFirst: `migrate up` runs beside the old programs, which restart on the new schema. The
// new ones follow, and are taken back.
func TestSchemaFirst(t *testing.T) {
	t.Parallel()
	s := open(t)

	// A report keeps it from its lock. Payments go on meanwhile.
	pid, end := s.report()
	want := fmt.Sprintf("waiting: %s needs a lock on payments, which pid %d (a report) holds",
		nextSQL, pid)
	waited := s.migrate(following, func(line string) {
		if line == want { // it looks every 100 ms, if the machine lets it
			end()
		}
	})
	if !slices.Contains(waited, want) {
		t.Errorf("it says %q, want %q", waited, want)
	}

	s.serves()
	for _, r := range []*release{current, following, current} { // restarted, deployed, taken back
		s.roll(r)
		s.serves()
	}

	// A pipeline that deploys the old release again begins with its migrate.
	again := current.run(t, "migrate", s.env["migrate"], []string{"up"}, nil)
	want = fmt.Sprintf("the schema is at version %d, and serves this program, which has %d\n",
		version+1, version)
	if again.code != 0 || again.stdout != want || len(again.stderr) > 0 {
		t.Errorf("the old migrate: %+v, want %q", again, want)
	}
	s.settle()
}

// TestProgramsFirst: programs that need a newer schema say so and end until it is there.
func TestProgramsFirst(t *testing.T) {
	t.Parallel()
	s := open(t)

	want := fmt.Sprintf("schema out of step: the database is at version %d, "+
		"this program needs %d: run `migrate up`", version, version+1)
	for _, program := range programs {
		s.refuses(following, program, want)
	}
	s.serves()

	s.migrate(following, nil)
	s.roll(following)
	s.settle()
}

// TestSchemaOutgrowsPrograms: programs that the schema no longer serves go on. They do not start.
func TestSchemaOutgrowsPrograms(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.migrate(breaking, nil)
	s.serves()

	want := fmt.Sprintf("schema out of step: the database is at version %d and serves programs "+
		"from %d on, this one knows only %d: deploy a newer program", version+1, version+1, version)
	for _, program := range programs {
		s.refuses(current, program, want)
	}
	s.refuses(current, "migrate", want, "up")
	s.refuses(current, "oncepay", want, seed...)
	s.settle()
}

// TestChangedMigration: a file that is not what was applied is named, and nothing more is applied.
func TestChangedMigration(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	got := edited.run(t, "migrate", []string{"DATABASE_URL=" + db.URL}, []string{"up"}, nil)

	want := regexp.MustCompile("^migrate: apply migrations: schema out of step: " +
		regexp.QuoteMeta(changedSQL) + ` was changed after it was applied at \S+Z: ` +
		"restore the file, put the change into a new one$")
	if got.code != 1 || got.stdout != "" || len(got.stderr) != 1 || !want.MatchString(got.stderr[0]) {
		t.Errorf("%+v", got)
	}

	have, err := migrations.Applied(t.Context(), db.Pool(t, ""))
	if err != nil || have != version {
		t.Errorf("the schema is at version %d: %v", have, err)
	}
}

// migrate applies the next file, and returns what it said while it waited.
func (s *shop) migrate(r *release, onWait func(string)) (waited []string) {
	s.t.Helper()
	got := r.run(s.t, "migrate", s.env["migrate"], []string{"up"}, onWait)

	want := fmt.Sprintf("applied %s\nthe schema is at version %d\n", nextSQL, version+1)
	if got.code != 0 || got.stdout != want {
		s.t.Fatalf("migrate up: %+v", got)
	}
	for _, line := range got.stderr {
		if !strings.HasPrefix(line, "waiting: ") {
			s.t.Errorf("migrate up says %q", line)
		}
	}
	return got.stderr
}

// refuses runs a program, which must end with one line.
func (s *shop) refuses(r *release, program, want string, args ...string) {
	s.t.Helper()
	got := r.run(s.t, program, s.env[program], args, nil)
	if got.code != 1 || got.stdout != "" || !slices.Equal(got.stderr, []string{program + ": " + want}) {
		s.t.Errorf("%s: %+v", program, got)
	}
}

// report reads payments in a transaction that lasts until end is called.
func (s *shop) report() (pid uint32, end func()) {
	s.t.Helper()
	cfg, err := pgx.ParseConfig(s.db.URL)
	if err != nil {
		s.t.Fatal(err)
	}
	cfg.RuntimeParams["application_name"] = "a report"
	conn, err := pgx.ConnectConfig(s.t.Context(), cfg)
	if err != nil {
		s.t.Fatal(err)
	}

	if _, err := conn.Exec(s.t.Context(), `BEGIN; SELECT FROM payments`); err != nil {
		s.t.Fatal(err)
	}
	return conn.PgConn().PID(), func() { _ = conn.Close(context.Background()) }
}
