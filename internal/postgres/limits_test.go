package postgres_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/internal/testenv"
)

// The server of the tests has these.
type limits struct{ Allowed, Locks int }

func serverLimits(t *testing.T, db *testenv.DB) (l limits) {
	t.Helper()
	err := db.Pool(t, "").QueryRow(t.Context(), `
		SELECT (SELECT setting::int FROM pg_settings WHERE name = 'max_connections')
				- (SELECT sum(setting::int) FROM pg_settings WHERE name IN ('superuser_reserved_connections', 'reserved_connections')),
			(SELECT setting::int FROM pg_settings WHERE name = 'max_locks_per_transaction')
				* (SELECT sum(setting::int) FROM pg_settings WHERE name IN ('max_connections', 'max_prepared_transactions'))`).
		Scan(&l.Allowed, &l.Locks)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLimitsOfTheServerAreCompared(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	server := serverLimits(t, db)
	for name, c := range map[string]struct {
		need postgres.Need
		want string // what is short; empty: nothing
	}{
		"little":                {postgres.Need{Connections: 4}, ""},
		"all connections":       {postgres.Need{Connections: server.Allowed}, "connections"}, // others have some
		"a deploy's locks":      {postgres.Need{Connections: 4, Locks: server.Locks / 2}, ""},
		"more than two's":       {postgres.Need{Connections: 4, Locks: server.Locks/2 + 1}, "locks"},
		"documented exhaustion": {postgres.Need{Connections: 4, Locks: 1000 * 16}, "locks"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lines := checkLimits(t, db.URLAs("api_read"), c.need)
			if c.want == "" && len(lines) != 0 || c.want != "" && len(lines) != 1 {
				t.Fatalf("it says %v", lines)
			}
			if c.want != "" && !strings.Contains(lines[0].Msg, "may run out of "+c.want) {
				t.Errorf("it says %+v, want %s", lines[0], c.want)
			}
			if c.want == "connections" && (lines[0].Allows != server.Allowed || lines[0].Others < 1) {
				t.Errorf("it says %+v, the server has %+v", lines[0], server)
			}
		})
	}
}

type line struct {
	Msg    string
	Others int `json:"others_now"`
	Allows int `json:"server_allows"`
}

func checkLimits(t *testing.T, url string, need postgres.Need) (lines []line) {
	t.Helper()
	var out bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&out, nil))
	pool, err := postgres.Open(t.Context(), url, "x", 1, log)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := postgres.CheckLimits(t.Context(), pool, need, log); err != nil {
		t.Fatal(err)
	}
	for decoder := json.NewDecoder(&out); decoder.More(); {
		var l line
		if err := decoder.Decode(&l); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, l)
	}
	return lines
}
