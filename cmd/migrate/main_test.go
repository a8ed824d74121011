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

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/credentials"
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
	if _, stderr, code := migrate(t, address, "seed", "-tenant", "demo", "-client", "shop"); code != 1 || !strings.Contains(stderr, "migrate up") {
		t.Errorf("seed without a schema: exit %d, %s", code, stderr)
	}
	before := must(t, address, "status")
	if !strings.Contains(before, "00001_credentials.sql") || !strings.Contains(before, "run `migrate up`") || strings.Contains(before, "20") {
		t.Errorf("status before:\n%s", before)
	}
	first := must(t, address, "up")
	if lines := regexp.MustCompile(`(?m)^applied 0000\d_[a-z]+\.sql$`).FindAllString(first, -1); len(lines) < 7 {
		t.Errorf("the first time:\n%s", first)
	}
	if again := must(t, address, "up"); !regexp.MustCompile(`^the schema is at version \d+\n$`).MatchString(again) {
		t.Errorf("the second time:\n%s", again)
	}
	after := must(t, address, "status")
	if strings.Contains(after, "no\n") || !regexp.MustCompile(`(?m)^1 +00001_credentials\.sql +\d{4}-\d\d-\d\dT`).MatchString(after) {
		t.Errorf("status after:\n%s", after)
	}
}

func TestADatabaseNewerThanTheProgramIsReported(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	if _, err := db.Pool(t, "").Exec(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, true)`); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"up"}, {"seed", "-tenant", "demo", "-client", "shop"}, {"revoke", "0000000000000000"}} {
		_, stderr, code := migrate(t, db.URL, args...)
		if code != 1 || !strings.Contains(stderr, "99999") || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit %d, %s", args[0], code, stderr)
		}
	}
}

func TestSeedMakesWhatIsMissingAndTheBooksBalance(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	owner := db.Pool(t, "")
	args := []string{"seed", "-tenant", "demo", "-client", "shop", "-currency", "USD", "-fund", "100000", "-json"}

	first := seedJSON(t, db.URL, append(args, "-accounts", "2", "-scopes", credentials.ScopeFund)...)
	if len(first.Accounts) != 2 || first.SystemAccount == nil || first.SystemAccount.BalanceMinor != -200_000 {
		t.Fatalf("first: %+v", first)
	}
	for _, a := range first.Accounts {
		if a.BalanceMinor != 100_000 || a.Currency != "USD" || a.Kind != "customer" {
			t.Errorf("account %+v", a)
		}
	}
	verifier := credentials.NewVerifier(db.Pool(t, "api_write"), time.Now)
	got, err := verifier.Verify(t.Context(), first.Token)
	want := credentials.Identity{TenantID: first.TenantID, ClientID: first.ClientID, CredentialID: first.CredentialID, Scopes: []string{credentials.ScopeFund}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("token: %v (-want +got):\n%s", err, diff)
	}

	second := seedJSON(t, db.URL, append(args, "-accounts", "3", "-credential=false")...)
	if second.Token != "" || second.CredentialID != "" {
		t.Errorf("a credential was made: %+v", second)
	}
	if second.TenantID != first.TenantID || second.ClientID != first.ClientID || second.SystemAccount.ID != first.SystemAccount.ID {
		t.Errorf("made again: %+v, first %+v", second, first)
	}
	if diff := cmp.Diff(first.Accounts, second.Accounts[:2]); diff != "" || len(second.Accounts) != 3 || second.SystemAccount.BalanceMinor != -300_000 {
		t.Errorf("accounts (-first +second):\n%s\n%+v", diff, second)
	}

	third := seedJSON(t, db.URL, "seed", "-tenant", "demo", "-client", "shop", "-json")
	if third.Token == "" || third.CredentialID == first.CredentialID || third.ClientID != first.ClientID {
		t.Errorf("rotation: %+v", third)
	}
	checkBooks(t, owner, 4, 3)
}

func TestSeedGoesOnWhereAnEarlierOneWasInterrupted(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	args := []string{"seed", "-tenant", "demo", "-client", "shop", "-currency", "JPY", "-accounts", "2", "-json"}
	before := seedJSON(t, db.URL, args...) // opened, not funded
	after := seedJSON(t, db.URL, append(args, "-fund", "5")...)
	for i, a := range after.Accounts {
		if a.ID != before.Accounts[i].ID || a.BalanceMinor != 5 {
			t.Errorf("%+v, before %+v", a, before.Accounts[i])
		}
	}
	checkBooks(t, db.Pool(t, ""), 3, 2)
}

func TestSeedsAtOnceMakeEverythingOnce(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	codes := make(chan string, 4)
	for range cap(codes) {
		go func() {
			_, stderr, _ := migrate(t, db.URL, "seed", "-tenant", "demo", "-client", "shop", "-currency", "USD", "-accounts", "5", "-fund", "1")
			codes <- stderr
		}()
	}
	for range cap(codes) {
		if stderr := <-codes; stderr != "" {
			t.Error(stderr)
		}
	}
	checkBooks(t, db.Pool(t, ""), 6, 5)
}

func TestSeedHandlesMoreAccountsThanOneTransactionTakes(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	s := seedJSON(t, db.URL, "seed", "-tenant", "demo", "-client", "shop", "-currency", "KWD", "-accounts", "1001", "-fund", "7", "-json")
	if len(s.Accounts) != 1001 || s.Accounts[1000].Name != "seed 1001" || s.SystemAccount.BalanceMinor != -7007 {
		t.Errorf("%d accounts, system %+v", len(s.Accounts), s.SystemAccount)
	}
	checkBooks(t, db.Pool(t, ""), 1002, 1001)
}

func TestSeedAsTextShowsTheTokenOnceAndOnlyThere(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	text := must(t, db.URL, "seed", "-tenant", "demo", "-client", "shop", "-currency", "USD", "-accounts", "1", "-fund", "250")
	found := regexp.MustCompile(`oncepay_\w+`).FindAllString(text, -1)
	if len(found) != 1 || !strings.Contains(text, "250 USD") || !strings.Contains(text, "-250 USD") {
		t.Fatalf("text:\n%s", text)
	}
	if _, ok := credentials.Parse(found[0]); !ok {
		t.Errorf("%s is no token", found[0])
	}
}

func TestARevokedCredentialIsRefused(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	pool := db.Pool(t, "api_write")
	byID := seedJSON(t, db.URL, "seed", "-tenant", "demo", "-client", "shop", "-json")
	byToken := seedJSON(t, db.URL, "seed", "-tenant", "demo", "-client", "shop", "-json")
	must(t, db.URL, "revoke", byID.CredentialID)
	if out := must(t, db.URL, "revoke", byToken.Token); strings.Contains(out, byToken.Token) || !strings.Contains(out, byToken.CredentialID) {
		t.Errorf("out: %s", out)
	}
	for _, s := range []seeded{byID, byToken} {
		if _, err := credentials.NewVerifier(pool, time.Now).Verify(t.Context(), s.Token); err != credentials.ErrUnauthorized { //nolint:errorlint // nothing may be wrapped around it
			t.Errorf("verify: %v", err)
		}
	}
	if _, stderr, code := migrate(t, db.URL, "revoke", "0000000000000000"); code != 1 || stderr != "migrate: revoke credential: not found\n" {
		t.Errorf("unknown: exit %d, %s", code, stderr)
	}
}

func seedJSON(t *testing.T, databaseURL string, args ...string) (s seeded) {
	t.Helper()
	if err := json.Unmarshal([]byte(must(t, databaseURL, args...)), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// checkBooks counts what must be there, and what must not.
func checkBooks(t *testing.T, owner *pgxpool.Pool, accounts, payments int64) {
	t.Helper()
	for _, c := range []struct {
		query string
		want  int64
	}{
		{`SELECT count(*) FROM accounts`, accounts},
		{`SELECT count(*) FROM payments WHERE status = 'completed' AND method = 'CLI'`, payments},
		{`SELECT count(*) FROM outbox_events WHERE event_type = 'account.opened'`, accounts},
		{`SELECT count(*) FROM outbox_events WHERE event_type = 'payment.completed'`, payments},
		{`SELECT count(*) FROM idempotency_keys`, accounts + payments},
		{`SELECT count(*) FROM ledger_entries`, 2 * payments},
		{`SELECT count(*) FROM (SELECT FROM ledger_entries GROUP BY payment_id, currency HAVING sum(amount_minor) <> 0) x`, 0},
		{`SELECT count(*) FROM accounts a, LATERAL (
			SELECT coalesce(sum(amount_minor), 0) AS balance, coalesce(max(entry_no), 0) AS last, count(*) AS entries
			FROM ledger_entries WHERE account_id = a.id) e
		  WHERE (a.balance_minor, a.entry_count, a.entry_count) IS DISTINCT FROM (e.balance, e.last, e.entries)`, 0},
	} {
		var got int64
		if err := owner.QueryRow(t.Context(), c.query).Scan(&got); err != nil || got != c.want {
			t.Errorf("%s: %d, want %d; %v", c.query, got, c.want, err)
		}
	}
}

func TestEveryMistakeIsOneLineAndTouchesNothing(t *testing.T) {
	t.Parallel()
	const nowhere = "postgres://127.0.0.1:1/x"
	for line, args := range map[string][]string{
		"no command: up, status, seed or revoke (migrate -h explains them)":                             {},
		`unknown command "down": up, status, seed or revoke (migrate -h explains them)`:                 {"down"},
		"flag provided but not defined: -force (migrate up -h shows the flags)":                         {"up", "-force"},
		`unexpected argument "7" (migrate up -h shows the flags)`:                                       {"up", "7"},
		`unexpected argument "x" (migrate status -h shows the flags)`:                                   {"status", "x"},
		"revoke takes one credential (migrate revoke -h explains it)":                                   {"revoke"},
		"-tenant must be a name of 1 to 100 characters (migrate seed -h shows the flags)":               {"seed", "-client", "c"},
		"-client must be a name of 1 to 100 characters (migrate seed -h shows the flags)":               {"seed", "-tenant", "t", "-client", strings.Repeat("é", 101)},
		"-accounts needs -currency (migrate seed -h shows the flags)":                                   {"seed", "-tenant", "t", "-client", "c", "-accounts", "1"},
		"-accounts must be from 0 to 10000 (migrate seed -h shows the flags)":                           {"seed", "-tenant", "t", "-client", "c", "-currency", "USD", "-accounts", "10001"},
		"-currency must be an ISO 4217 code in capitals, such as USD (migrate seed -h shows the flags)": {"seed", "-tenant", "t", "-client", "c", "-currency", "usd"},
		"-fund needs -accounts (migrate seed -h shows the flags)":                                       {"seed", "-tenant", "t", "-client", "c", "-fund", "1"},
		"-fund must be from 0 to 1000000000000 (migrate seed -h shows the flags)":                       {"seed", "-tenant", "t", "-client", "c", "-currency", "USD", "-accounts", "1", "-fund", "-1"},
		`invalid value "1000.00" for flag -fund: parse error (migrate seed -h shows the flags)`:         {"seed", "-fund", "1000.00"},
		"-scopes needs a credential (migrate seed -h shows the flags)":                                  {"seed", "-tenant", "t", "-client", "c", "-credential=false", "-scopes", "accounts:fund"},
		`unknown scope "account:fund": there is accounts:fund`:                                          {"seed", "-tenant", "t", "-client", "c", "-scopes", "account:fund"},
	} {
		stdout, stderr, code := migrate(t, nowhere, args...)
		if code != 1 || stdout != "" || stderr != "migrate: "+line+"\n" {
			t.Errorf("%q: exit %d, %s%s", args, code, stdout, stderr)
		}
	}
	_, stderr, code := migrate(t, nowhere, "seed", "x")
	if want := "migrate: unexpected argument \"x\" (migrate seed -h shows the flags)\n" +
		"migrate: -tenant must be a name of 1 to 100 characters (migrate seed -h shows the flags)\n" +
		"migrate: -client must be a name of 1 to 100 characters (migrate seed -h shows the flags)\n"; code != 1 || stderr != want {
		t.Errorf("several problems: exit %d\n%s", code, stderr)
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
		for _, args := range [][]string{{"up"}, {"status"}, {"seed", "-tenant", "t", "-client", "c"}, {"revoke", "x"}} {
			if args[0] != "up" && strings.Contains(address, silent.Addr().String()) {
				continue // they all wait the same four seconds
			}
			start := time.Now()
			stdout, stderr, code := migrate(t, address, args...)
			took := time.Since(start)
			if code != 1 || stdout != "" || !strings.HasPrefix(stderr, "migrate: "+say) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("%s with %q: exit %d, %s%s", args[0], address, code, stdout, stderr)
			}
			if took > 5*time.Second || strings.Contains(stderr, "hunter2") {
				t.Errorf("%s with %q: after %s: %s", args[0], address, took, stderr)
			}
		}
	}
}

func TestHelpHasAnExample(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-h"}, {"--help"}, {"up", "-h"}, {"status", "-h"}, {"seed", "--help"}, {"revoke", "-h"}} {
		if out := must(t, "", args...); !strings.Contains(out, "Example") || !strings.Contains(out, "Usage: migrate") {
			t.Errorf("%q:\n%s", args, out)
		}
	}
	if out := must(t, "", "-h"); !strings.Contains(out, "DATABASE_URL  required") {
		t.Errorf("no variables in:\n%s", out)
	}
}
