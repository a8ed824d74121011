package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/testenv"
)

// migrate runs the command as a shell would.
func migrate(t *testing.T, databaseURL string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, problems bytes.Buffer
	code = run(t.Context(), args, func(name string) string {
		if name == "DATABASE_URL" {
			return databaseURL
		}
		return ""
	}, &out, &problems)
	return out.String(), problems.String(), code
}

// must is migrate where nothing may go wrong.
func must(t *testing.T, databaseURL string, args ...string) string {
	t.Helper()
	stdout, stderr, code := migrate(t, databaseURL, args...)
	if code != 0 || stderr != "" {
		t.Fatalf("migrate %s: exit %d, %s", strings.Join(args, " "), code, stderr)
	}
	return stdout
}

// empty makes a database without a schema.
func empty(t *testing.T) string {
	t.Helper()
	db := testenv.Database(t)
	pool := db.Pool(t, "")
	name := strings.Replace(db.Name, "test", "empty", 1)
	if _, err := pool.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

func TestUpAppliesEveryFileOnceAndStatusShowsIt(t *testing.T) {
	t.Parallel()
	address := empty(t)
	before := must(t, address, "status")
	if !strings.Contains(before, "00001_credentials.sql") || !strings.Contains(before, "run `migrate up`") || strings.Contains(before, "20") {
		t.Errorf("status before:\n%s", before)
	}
	checkStatus(t, address, false)
	first := must(t, address, "up")
	if lines := regexp.MustCompile(`(?m)^applied 0000\d_[a-z]+\.sql$`).FindAllString(first, -1); len(lines) < 7 {
		t.Errorf("the first time:\n%s", first)
	}
	if again := must(t, address, "up"); !regexp.MustCompile(`^the schema is at version \d+\n$`).MatchString(again) {
		t.Errorf("the second time:\n%s", again)
	}
	checkStatus(t, address, true)
	after := must(t, address, "status")
	if strings.Contains(after, "-\n") || !regexp.MustCompile(`(?m)^1 +00001_credentials\.sql +\d{4}-\d\d-\d\dT`).MatchString(after) {
		t.Errorf("status after:\n%s", after)
	}
}

// checkStatus compares the JSON of status with whether everything is applied.
func checkStatus(t *testing.T, address string, applied bool) {
	t.Helper()
	var s schema
	if err := json.Unmarshal([]byte(must(t, address, "status", "--json")), &s); err != nil {
		t.Fatal(err)
	}
	if s.InStep != applied || len(s.Files) < 7 || s.Files[0].Name != "00001_credentials.sql" || (s.Files[0].Applied != nil) != applied {
		t.Errorf("applied %t: %+v", applied, s)
	}
}

func TestADatabaseNewerThanTheProgramIsReported(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	if _, err := db.Pool(t, "").Exec(t.Context(), `
		INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, true)`); err != nil {
		t.Fatal(err)
	}
	_, stderr, code := migrate(t, db.URL, "up")
	if code != 1 || !strings.Contains(stderr, "99999") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit %d, %s", code, stderr)
	}
}

func TestAnOlderMigrateServesANewerSchema(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	if _, err := db.Pool(t, "").Exec(t.Context(), `
		INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, true);
		INSERT INTO schema_files (version, name, sha256, oldest_program) VALUES (99999, 'next.sql', '', 8)`); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"up", "status"} {
		if out := must(t, db.URL, command); !strings.Contains(out, "the schema is at version 99999, and serves this program") {
			t.Errorf("%s: %s", command, out)
		}
	}
}

func TestAChangedFileIsNamed(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	if _, err := db.Pool(t, "").Exec(t.Context(), `UPDATE schema_files SET sha256 = 'x' WHERE version = 10`); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, code := migrate(t, db.URL, "up")
	if code != 1 || stdout != "" || !strings.Contains(stderr, "00010_cards.sql was changed") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("up: exit %d, %s%s", code, stdout, stderr)
	}
	var s schema
	if err := json.Unmarshal([]byte(must(t, db.URL, "status", "--json")), &s); err != nil {
		t.Fatal(err)
	}
	if s.InStep || !strings.Contains(s.Note, "00010_cards.sql was changed") || !s.Files[9].Changed || s.Files[8].Changed {
		t.Errorf("status: %+v", s)
	}
}

func TestEveryMistakeIsOneLineAndTouchesNothing(t *testing.T) {
	t.Parallel()
	const nowhere = "postgres://127.0.0.1:1/x"
	for line, args := range map[string][]string{
		"no command (migrate -h explains it)":                     {},
		`unknown command "down" (migrate -h explains it)`:         {"down"},
		`unknown command "seed" (migrate -h explains it)`:         {"seed", "--tenant", "t", "--client", "c"},
		"unknown flag: --force (migrate up -h explains it)":       {"up", "--force"},
		`unexpected argument "7" (migrate up -h explains it)`:     {"up", "7"},
		`unexpected argument "x" (migrate status -h explains it)`: {"status", "x"},
		"unknown flag: --colour (migrate -h explains it)":         {"--colour"},
	} {
		stdout, stderr, code := migrate(t, nowhere, args...)
		if code != 1 || stdout != "" || stderr != "migrate: "+line+"\n" {
			t.Errorf("%q: exit %d, %s%s", args, code, stdout, stderr)
		}
	}
}

func TestAWrongDatabaseIsReportedInOneLineWithin5Seconds(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for address, say := range map[string]string{
		"":                                   "DATABASE_URL is not set",
		"mysql://localhost/x":                "DATABASE_URL must be",
		"postgres://u:hunter2@localhost:1/x": "connect to database: ",
		"postgres://u:hunter2@" + silent.Addr().String() + "/x?sslmode=disable": "connect to database: ",
	} {
		for _, args := range [][]string{{"up"}, {"status"}} {
			if args[0] != "up" && strings.Contains(address, silent.Addr().String()) {
				continue // they all wait the same four seconds
			}
			start := time.Now()
			stdout, stderr, code := migrate(t, address, args...)
			took := time.Since(start)
			if code != 1 || stdout != "" || !strings.HasPrefix(stderr, "migrate: "+say) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("%s with %q: exit %d, %s%s", args[0], address, code, stdout, stderr)
			}
			if took > 15*time.Second || strings.Contains(stderr, "hunter2") {
				t.Errorf("%s with %q: after %s: %s", args[0], address, took, stderr)
			}
		}
	}
}

func TestHelpHasAnExample(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-h"}, {"--help"}, {"up", "-h"}, {"status", "--help"}} {
		if out := must(t, "", args...); !strings.Contains(out, "Example") || !strings.Contains(out, "Usage:\n  migrate") {
			t.Errorf("%q:\n%s", args, out)
		}
	}
	if out := must(t, "", "-h"); !strings.Contains(out, "DATABASE_URL  required") {
		t.Errorf("no variables in:\n%s", out)
	}
}
