package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/testenv"
)

// TestMain lets a test start this program as a process of its own, see process.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_RUNS_ONCEPAY") != "" {
		main()
	}
	os.Exit(m.Run())
}

// environment is what the shell exports.
type environment map[string]string

func owner(databaseURL string) environment { return environment{"DATABASE_URL": databaseURL} }

// oncepay runs the command as a shell would.
func oncepay(t *testing.T, env environment, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, problems bytes.Buffer
	code = run(t.Context(), args, func(name string) string { return env[name] }, &out, &problems)
	return out.String(), problems.String(), code
}

// process is oncepay as a process of its own, for what only one has: signals, and a real standard output.
func process(t *testing.T, env environment, stdout *os.File, args ...string) (stderr string, code int) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var problems bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "TEST_RUNS_ONCEPAY=1")
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stdout, cmd.Stderr = stdout, &problems
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return problems.String(), cmd.ProcessState.ExitCode()
}

// must is oncepay where nothing may go wrong.
func must(t *testing.T, env environment, args ...string) string {
	t.Helper()
	stdout, stderr, code := oncepay(t, env, args...)
	if code != exitDone || stderr != "" {
		t.Fatalf("oncepay %s: exit %d, %s", strings.Join(args, " "), code, stderr)
	}
	return stdout
}

// mustJSON is must with -json, read into v.
func mustJSON(t *testing.T, v any, env environment, args ...string) {
	t.Helper()
	out := must(t, env, append(args, "-json")...)
	decoder := json.NewDecoder(strings.NewReader(out))
	if err := decoder.Decode(v); err != nil || decoder.More() {
		t.Fatalf("oncepay %s: not one JSON value, %v:\n%s", strings.Join(args, " "), err, out)
	}
}

// shop is a database with a client that has two accounts with 1,000.00 USD each, and the service in front of it.
type shop struct {
	db    *testenv.DB
	owner environment
	env   environment // the client's
	api   *httptest.Server
	seeded
}

func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{db: testenv.Database(t)}
	s.owner = owner(s.db.URL)
	mustJSON(t, &s.seeded, s.owner, "seed", "-tenant", "demo", "-client", "shop", "-currency", "USD", "-accounts", "2", "-fund", "100000")
	write := s.db.Pool(t, "api_write")
	processor := &payments.Processor{DB: write, Retention: idempotency.DefaultRetention, Render: httpapi.Render}
	s.api = httptest.NewServer(httpapi.New(httpapi.Options{
		Submit: func(ctx context.Context, r payments.Request) (idempotency.Answer, error) {
			as, err := processor.Process(ctx, []payments.Request{r})
			if err != nil {
				return idempotency.Answer{}, err
			}
			return as[0], nil
		},
		Await: processor.Await,
		Read:  s.db.Pool(t, "api_read"), Credentials: credentials.NewVerifier(write, time.Now),
	}))
	t.Cleanup(s.api.Close)
	s.env = environment{"ONCEPAY_URL": s.api.URL, "ONCEPAY_TOKEN": s.Token}
	return s
}

// count asks the database for one number.
func (s *shop) count(t *testing.T, query string, args ...any) (n int) {
	t.Helper()
	if err := s.db.Pool(t, "").QueryRow(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// aCredential looks like one.
const aCredential = "oncepay_0123456789abcdef_0123456789abcdef0123456789abcdef0AbCdE"

func TestEveryMistakeIsOneLineAndTouchesNothing(t *testing.T) {
	t.Parallel()
	nowhere := environment{"DATABASE_URL": "postgres://127.0.0.1:1/x", "ONCEPAY_URL": "http://127.0.0.1:1", "ONCEPAY_TOKEN": "oncepay_mistyped"}
	const id = "0198a6de-5c1f-7000-8000-0123456789ab"
	const pay = "pay -from " + id + " -to " + id + " -amount 1 -currency USD"
	for _, c := range []struct{ args, line string }{
		{"", "no command (oncepay -h shows them)"},
		{"revoke x", `unknown command "revoke" (oncepay -h shows them)`},
		{"tenants drop", `unknown command "tenants drop" (oncepay -h shows them)`},
		{"clients", "clients what? (oncepay -h shows the commands)"},
		{"outbox -force", "flag provided but not defined: -force (oncepay outbox -h explains it)"},
		{"outbox 7", `unexpected argument "7" (oncepay outbox -h explains it)`},
		{"seed x", `unexpected argument "x" (oncepay seed -h explains it)`},
		{"tenants create a -json b", `unexpected argument "b" (oncepay tenants create -h explains it)`},
		{"tenants create", "NAME is missing (oncepay tenants create -h explains it)"},
		{"credentials revoke -json", "CREDENTIAL is missing (oncepay credentials revoke -h explains it)"},
		{"tenants create ", "NAME must be a name of 1 to 100 characters (oncepay tenants create -h explains it)"},
		{"credentials list -tenant t", "-client must be a name of 1 to 100 characters (oncepay credentials list -h explains it)"},
		{"credentials create -tenant t -client c -scopes all", `unknown scope "all": there is accounts:fund`},
		{"seed -client c", "-tenant must be a name of 1 to 100 characters (oncepay seed -h explains it)"},
		{"seed -tenant t -client " + strings.Repeat("é", 101), "-client must be a name of 1 to 100 characters (oncepay seed -h explains it)"},
		{"seed -tenant t -client c -accounts 1", "-accounts needs -currency (oncepay seed -h explains it)"},
		{"seed -tenant t -client c -currency USD -accounts 10001", "-accounts must be from 0 to 10000 (oncepay seed -h explains it)"},
		{"seed -tenant t -client c -currency usd", "-currency must be an ISO 4217 code in capitals, such as USD (oncepay seed -h explains it)"},
		{"seed -tenant t -client c -fund 1", "-fund needs -accounts (oncepay seed -h explains it)"},
		{"seed -tenant t -client c -currency USD -accounts 1 -fund -1", "-fund must be from 0 to 1000000000000 (oncepay seed -h explains it)"},
		{"seed -fund 1000.00", `invalid value "1000.00" for flag -fund: it must be a whole number of minor units, such as 2500 for 25.00 USD (oncepay seed -h explains it)`},
		{"seed -tenant t -client c -credential=false -scopes accounts:fund", "-scopes needs a credential (oncepay seed -h explains it)"},
		{"seed -tenant t -client c -scopes account:fund", `unknown scope "account:fund": there is accounts:fund`},
		{"statement 42", "ACCOUNT must be an id such as 0198a6de-5c1f-7000-8000-0123456789ab (oncepay statement -h explains it)"},
		{"get payment-1", "ID must be an id such as 0198a6de-5c1f-7000-8000-0123456789ab (oncepay get -h explains it)"},
		{"key ", "KEY: the Idempotency-Key is invalid: it is empty (oncepay key -h explains it)"},
		{pay + " -amount 0", "-amount must be from 1 to 1000000000000, in minor units (oncepay pay -h explains it)"},
		{pay + " -amount 25.00", `invalid value "25.00" for flag -amount: it must be a whole number of minor units, such as 2500 for 25.00 USD (oncepay pay -h explains it)`},
		{pay + " -amount 0x10", `invalid value "0x10" for flag -amount: it must be a whole number of minor units, such as 2500 for 25.00 USD (oncepay pay -h explains it)`},
		{pay + " -timeout 5", `invalid value "5" for flag -timeout: it must be a duration, such as 30s or 2m (oncepay pay -h explains it)`},
		{pay + " -description caf\xe9", "-description and -reference must be UTF-8 (oncepay pay -h explains it)"},
		{pay + " -reference caf\xe9", "-description and -reference must be UTF-8 (oncepay pay -h explains it)"},
		{pay + " -currency EURO", "-currency must be an ISO 4217 code in capitals, such as USD (oncepay pay -h explains it)"},
		{pay + " -timeout 0s", "-timeout must be more than nothing, such as 30s (oncepay pay -h explains it)"},
		{pay + " -key order\t1", "-key: the Idempotency-Key is invalid: only visible ASCII characters are allowed, no spaces (oncepay pay -h explains it)"},
		{pay, "ONCEPAY_TOKEN is no credential: one begins with oncepay_ and has a checksum, so a character is wrong or missing"},
	} {
		var args []string
		if c.args != "" {
			args = strings.Split(c.args, " ")
		}
		stdout, stderr, code := oncepay(t, nowhere, args...)
		if code != exitFailed || stdout != "" || stderr != "oncepay: "+c.line+"\n" {
			t.Errorf("%q: exit %d, %s%s", args, code, stdout, stderr)
		}
	}
	_, stderr, code := oncepay(t, nowhere, "clients", "create", "")
	if want := "oncepay: -tenant must be a name of 1 to 100 characters (oncepay clients create -h explains it)\n" +
		"oncepay: NAME must be a name of 1 to 100 characters (oncepay clients create -h explains it)\n"; code != exitFailed || stderr != want {
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
	commands := [][]string{
		{"tenants", "list"}, {"seed", "-tenant", "t", "-client", "c"}, {"tenants", "create", "t"}, {"clients", "list", "-tenant", "t"},
		{"credentials", "revoke", "x"}, {"statement", "0198a6de-5c1f-7000-8000-0123456789ab"}, {"outbox"},
	}
	for address, say := range map[string]string{
		"":                                   "DATABASE_URL is not set",
		"mysql://localhost/x":                "DATABASE_URL must be",
		"postgres://u:hunter2@localhost:1/x": "connect to database: ",
		"postgres://u:hunter2@" + silent.Addr().String() + "/x?sslmode=disable": "connect to database: ",
		testenv.EmptyDatabase(t).URL: "schema out of step: the database is at version 0",
	} {
		for i, args := range commands {
			if i > 0 && strings.Contains(address, silent.Addr().String()) {
				continue // they all wait the same three seconds
			}
			start := time.Now()
			stdout, stderr, code := oncepay(t, owner(address), args...)
			took := time.Since(start)
			if code != exitFailed || stdout != "" || !strings.HasPrefix(stderr, "oncepay: "+say) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("%s with %q: exit %d, %s%s", args[0], address, code, stdout, stderr)
			}
			if took > 5*time.Second || strings.Contains(stderr, "hunter2") {
				t.Errorf("%s with %q: after %s: %s", args[0], address, took, stderr)
			}
		}
	}
}

func TestEveryCommandExplainsItselfWithAnExample(t *testing.T) {
	t.Parallel()
	all := must(t, nil, "-h")
	for _, want := range []string{"Usage: oncepay", "Example", "Exit codes", "DATABASE_URL", "ONCEPAY_TOKEN", "http://127.0.0.1:8080"} {
		if !strings.Contains(all, want) {
			t.Errorf("-h lacks %q:\n%s", want, all)
		}
	}
	if group := must(t, nil, "tenants", "--help"); group != all {
		t.Errorf("tenants --help:\n%s", group)
	}
	for _, name := range []string{
		"seed", "tenants list", "tenants create", "clients list", "clients create", "credentials list", "credentials create",
		"credentials revoke", "statement", "outbox", "pay", "get", "key",
	} {
		out := must(t, nil, append(strings.Fields(name), "-h")...)
		for _, want := range []string{"Usage: oncepay " + name + " ", "Example", "Flags:", "-json"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s -h lacks %q:\n%s", name, want, out)
			}
		}
		if !strings.Contains(all, "\n  "+name+" ") {
			t.Errorf("-h does not list %s", name)
		}
		if behind := must(t, nil, append(strings.Fields(name), "x", "-h")...); behind != out {
			t.Errorf("%s x -h:\n%s", name, behind)
		}
	}
}

func TestACredentialAmongTheArgumentsIsRefusedAndNeverShown(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"key", aCredential}, {"get", aCredential}, {"tenants", "create", "x", aCredential}, {aCredential}, {"outbox", "-" + aCredential},
		{"pay", "-key", aCredential}, {"pay", "-token=" + aCredential}, {"tenants", aCredential},
		{"credentials", "revoke", "x", aCredential}, {"credentials", "revoke", "-token=" + aCredential},
	} {
		stdout, stderr, code := oncepay(t, environment{"ONCEPAY_TOKEN": aCredential}, args...)
		if code != exitFailed || strings.Contains(stdout+stderr, aCredential[25:57]) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: exit %d, %s%s", args, code, stdout, stderr)
		}
	}
}
