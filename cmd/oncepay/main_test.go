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
	programs "github.com/oncepay/oncepay/internal/process"
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

// oncepay runs the command as a shell would, again if it was late.
func oncepay(t *testing.T, env environment, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	for tries := 1; ; tries++ {
		var out, problems bytes.Buffer
		code = run(t.Context(), args, func(name string) string { return env[name] }, &out, &problems)
		late := strings.Contains(problems.String(), "connect to database: ") && programs.WasLate(problems.String())
		if !late || tries == 3 {
			return out.String(), problems.String(), code
		}
	}
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

// mustJSON is must with --json, read into v.
func mustJSON(t *testing.T, v any, env environment, args ...string) {
	t.Helper()
	out := must(t, env, append(args, "--json")...)
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
	mustJSON(t, &s.seeded, s.owner, "seed", "--tenant", "demo", "--client", "shop", "--currency", "USD", "--accounts", "2", "--fund", "100000")
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
		Await: processor.Await, Write: write,
		Read: s.db.Pool(t, "api_read"), Credentials: credentials.NewVerifier(write, time.Now),
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
	const pay = "pay --from " + id + " --to " + id + " --amount 1 --currency USD"
	const wantsAmount = "it must be a whole number of minor units, such as 2500 for 25.00 USD"
	const wantsCurrency = "it must be an ISO 4217 code in capitals, such as USD"
	const wantsName = "it must be a name of 1 to 100 characters"
	const wantsID = "it must be an id such as 0198a6de-5c1f-7000-8000-0123456789ab"
	const wantsHold = "it must be a duration in whole seconds, such as 24h, up to 720h"
	for _, c := range []struct{ args, line string }{
		{"", "no command (oncepay -h explains it)"},
		{"revoke x", `unknown command "revoke" (oncepay -h explains it)`},
		{"help", `unknown command "help" (oncepay -h explains it)`},
		{"tenants drop", `unknown command "drop" (oncepay tenants -h explains it)`},
		{"clients", "no command (oncepay clients -h explains it)"},
		{"drop --tenant t", `unknown command "drop" (oncepay -h explains it)`},
		{"completion", "no command (oncepay completion -h explains it)"},
		{"completion tcsh", `unknown command "tcsh" (oncepay completion -h explains it)`},
		{"outbox --force", "unknown flag: --force (oncepay outbox -h explains it)"},
		{"outbox -json", "unknown shorthand flag: 'j' in -json (oncepay outbox -h explains it)"},
		{"--force", "unknown flag: --force (oncepay -h explains it)"},
		{"outbox 7", `unexpected argument "7" (oncepay outbox -h explains it)`},
		{"seed x --tenant t --client c", `unexpected argument "x" (oncepay seed -h explains it)`},
		{"tenants create a --json b", `unexpected argument "b" (oncepay tenants create -h explains it)`},
		{"tenants create", "NAME is missing (oncepay tenants create -h explains it)"},
		{"credentials revoke --json", "CREDENTIAL is missing (oncepay credentials revoke -h explains it)"},
		{"tenants create ", "NAME: " + wantsName + " (oncepay tenants create -h explains it)"},
		{"clients create c", `required flag(s) "tenant" not set (oncepay clients create -h explains it)`},
		{"credentials list --tenant t", `required flag(s) "client" not set (oncepay credentials list -h explains it)`},
		{"credentials create --tenant t --client c --scopes all", `invalid argument "all" for "--scopes" flag: unknown scope "all": there is accounts:fund (oncepay credentials create -h explains it)`},
		{"seed --client c", `required flag(s) "tenant" not set (oncepay seed -h explains it)`},
		{"seed --tenant t --client " + strings.Repeat("é", 101), `invalid argument "` + strings.Repeat("é", 101) + `" for "--client" flag: ` + wantsName + " (oncepay seed -h explains it)"},
		{"seed --tenant  --client c", `invalid argument "" for "--tenant" flag: ` + wantsName + " (oncepay seed -h explains it)"},
		{"seed --tenant t --client c --accounts 1", "--accounts needs --currency"},
		{"seed --tenant t --client c --currency USD --accounts 10001", "--accounts must be from 0 to 10000"},
		{"seed --tenant t --client c --currency USD --accounts -1", "--accounts must be from 0 to 10000"},
		{"seed --tenant t --client c --currency usd", `invalid argument "usd" for "--currency" flag: ` + wantsCurrency + " (oncepay seed -h explains it)"},
		{"seed --tenant t --client c --fund 1", "--fund needs --accounts"},
		{"seed --tenant t --client c --currency USD --accounts 1 --fund -1", `invalid argument "-1" for "--fund" flag: it must be from 1 to 1000000000000, in minor units (oncepay seed -h explains it)`},
		{"seed --fund 1000.00", `invalid argument "1000.00" for "--fund" flag: ` + wantsAmount + " (oncepay seed -h explains it)"},
		{"seed --tenant t --client c --credential=false --scopes accounts:fund", "--scopes needs a credential"},
		{"seed --tenant t --client c --scopes account:fund", `invalid argument "account:fund" for "--scopes" flag: unknown scope "account:fund": there is accounts:fund (oncepay seed -h explains it)`},
		{"statement 42", "ACCOUNT: " + wantsID + " (oncepay statement -h explains it)"},
		{"get payment-1", "ID: " + wantsID + " (oncepay get -h explains it)"},
		{"key ", "KEY: the Idempotency-Key is invalid: it is empty (oncepay key -h explains it)"},
		{"pay --from " + id + " --amount 1", `required flag(s) "currency", "to" not set (oncepay pay -h explains it)`},
		{pay + " --from 7", `invalid argument "7" for "--from" flag: ` + wantsID + " (oncepay pay -h explains it)"},
		{pay + " --amount 0", `invalid argument "0" for "--amount" flag: it must be from 1 to 1000000000000, in minor units (oncepay pay -h explains it)`},
		{pay + " --amount 25.00", `invalid argument "25.00" for "--amount" flag: ` + wantsAmount + " (oncepay pay -h explains it)"},
		{pay + " --amount 0x10", `invalid argument "0x10" for "--amount" flag: ` + wantsAmount + " (oncepay pay -h explains it)"},
		{pay + " --timeout 5", `invalid argument "5" for "--timeout" flag: it must be a duration, such as 30s or 2m (oncepay pay -h explains it)`},
		{pay + " --description caf\xe9", `invalid argument "caf\xe9" for "--description" flag: it must be UTF-8 (oncepay pay -h explains it)`},
		{pay + " --reference caf\xe9", `invalid argument "caf\xe9" for "--reference" flag: it must be UTF-8 (oncepay pay -h explains it)`},
		{pay + " --currency EURO", `invalid argument "EURO" for "--currency" flag: ` + wantsCurrency + " (oncepay pay -h explains it)"},
		{pay + " --timeout 0s", `invalid argument "0s" for "--timeout" flag: it must be a duration, such as 30s or 2m (oncepay pay -h explains it)`},
		{pay + " --key order\t1", `invalid argument "order\t1" for "--key" flag: the Idempotency-Key is invalid: only visible ASCII characters are allowed, no spaces (oncepay pay -h explains it)`},
		// As of a script whose variable is not set: a new key would pay again.
		{pay + " --key ", `invalid argument "" for "--key" flag: the Idempotency-Key is invalid: it is empty (oncepay pay -h explains it)`},
		{pay + " --hold-for 24h", "--hold-for needs --hold"},
		{pay + " --hold --hold-for 721h", `invalid argument "721h" for "--hold-for" flag: ` + wantsHold + " (oncepay pay -h explains it)"},
		{pay + " --hold --hold-for 1500ms", `invalid argument "1500ms" for "--hold-for" flag: ` + wantsHold + " (oncepay pay -h explains it)"},
		{pay + " --hold --hold-for 0s", `invalid argument "0s" for "--hold-for" flag: ` + wantsHold + " (oncepay pay -h explains it)"},
		{"capture --amount 1", "PAYMENT is missing (oncepay capture -h explains it)"},
		{"capture payment-1", "PAYMENT: " + wantsID + " (oncepay capture -h explains it)"},
		{"capture " + id + " --amount 20.00", `invalid argument "20.00" for "--amount" flag: ` + wantsAmount + " (oncepay capture -h explains it)"},
		{"capture " + id + " --if-version 0", `invalid argument "0" for "--if-version" flag: it must be a version, such as 1 (oncepay capture -h explains it)`},
		{"cancel " + id + " --amount 1", "unknown flag: --amount (oncepay cancel -h explains it)"},
		{"cancel " + id + " --key ", `invalid argument "" for "--key" flag: the Idempotency-Key is invalid: it is empty (oncepay cancel -h explains it)`},
		{"refund " + id + " " + id, `unexpected argument "` + id + `" (oncepay refund -h explains it)`},
		{"refund " + id + " --amount -5", `invalid argument "-5" for "--amount" flag: it must be from 1 to 1000000000000, in minor units (oncepay refund -h explains it)`},
		{"refund " + id + " --if-version \"1\"", `invalid argument "\"1\"" for "--if-version" flag: it must be a version, such as 1 (oncepay refund -h explains it)`},
		{"refund " + id + " --reason caf\xe9", `invalid argument "caf\xe9" for "--reason" flag: it must be UTF-8 (oncepay refund -h explains it)`},
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
	_, stderr, code := oncepay(t, nowhere, "credentials", "list")
	if want := "oncepay: required flag(s) \"client\", \"tenant\" not set (oncepay credentials list -h explains it)\n"; code != exitFailed || stderr != want {
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
		{"tenants", "list"}, {"seed", "--tenant", "t", "--client", "c"}, {"tenants", "create", "t"}, {"clients", "list", "--tenant", "t"},
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
			if took > 30*time.Second || strings.Contains(stderr, "hunter2") {
				t.Errorf("%s with %q: after %s: %s", args[0], address, took, stderr)
			}
		}
	}
}

func TestEveryCommandExplainsItselfWithAnExample(t *testing.T) {
	t.Parallel()
	all := must(t, nil, "-h")
	for _, want := range []string{"Usage:\n  oncepay", "Examples:\n", "Exit codes", "DATABASE_URL", "ONCEPAY_TOKEN", "http://127.0.0.1:8080"} {
		if !strings.Contains(all, want) {
			t.Errorf("-h lacks %q:\n%s", want, all)
		}
	}
	for _, group := range []string{"tenants", "clients", "credentials"} {
		if out := must(t, nil, group, "--help"); !strings.Contains(out, "Examples:\n  oncepay "+group+" ") || !strings.Contains(all, "\n  "+group) {
			t.Errorf("%s --help:\n%s", group, out)
		}
	}
	for _, name := range []string{
		"seed", "tenants list", "tenants create", "clients list", "clients create", "credentials list", "credentials create",
		"credentials revoke", "statement", "outbox", "top", "pay", "capture", "cancel", "refund", "get", "key",
	} {
		out := must(t, nil, append(strings.Fields(name), "-h")...)
		for _, want := range []string{"Usage:\n  oncepay " + name + " ", "Examples:\n  oncepay " + name, "Flags:\n", "--json"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s -h lacks %q:\n%s", name, want, out)
			}
		}
		if first := strings.Fields(name)[0]; !strings.Contains(all, "\n  "+first+" ") {
			t.Errorf("-h does not list %s", first)
		}
		if behind := must(t, nil, append(strings.Fields(name), "x", "-h")...); behind != out {
			t.Errorf("%s x -h:\n%s", name, behind)
		}
	}
}

// completeInBash does what Tab does. bash-completion, which may not be installed, would split the line.
const completeInBash = `
oncepay() { "$PROGRAM" "$@"; }
source <(oncepay completion bash)
_get_comp_words_by_ref() { words=("${COMP_WORDS[@]}") cword=$COMP_CWORD cur=${COMP_WORDS[COMP_CWORD]}; }
compopt() { :; }
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=1000 COMP_TYPE=9
__start_oncepay
echo "${COMPREPLY[@]}"`

func TestTabInBashCompletesCommandsAndFlags(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for typed, want := range map[string]string{"oncepay st": "statement", "oncepay credentials r": "revoke", "oncepay pay --fr": "--from"} {
		args := append([]string{"-c", completeInBash, "bash"}, strings.Fields(typed)...)
		cmd := exec.CommandContext(t.Context(), bash, args...)
		cmd.Env = append(os.Environ(), "TEST_RUNS_ONCEPAY=1", "PROGRAM="+program)
		if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%s: %v, %q instead of %q", typed, err, out, want)
		}
	}
}

func TestShellsCompleteCommandsAndFlags(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script := must(t, nil, "completion", shell)
		if !strings.Contains(script, "__complete") || !strings.Contains(script, "oncepay") {
			t.Errorf("%s:\n%s", shell, script)
		}
		path, err := exec.LookPath(shell)
		if err != nil {
			continue // what follows needs the shell
		}
		check := exec.CommandContext(t.Context(), path, "-n")
		check.Stdin = strings.NewReader(script)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%s cannot read the script: %v\n%s", shell, err, out)
		}
	}
	// What the scripts ask for: no file names, since no argument is one.
	for typed, want := range map[string]string{
		"":                    "\npay\tMake a payment from an account or by card, or hold its money for a capture\n",
		"cl":                  "clients\tShow and create clients, the programs that call the API\n:4\n",
		"credentials r":       "revoke\tEnd a credential for good: every API process refuses it within 30 seconds\n:4\n",
		"pay --fr":            "--from\taccount that pays\n:4\n",
		"refund 0198a6de --a": "--amount\tminor units: 2500 is 25.00 USD (without it all that is left)\n:4\n",
		"statement --js":      "--json\twrite JSON\n:4\n",
		"get 0198a6de --json": ":4\n",
	} {
		stdout, _, code := oncepay(t, nil, append([]string{"__complete"}, strings.Split(typed, " ")...)...)
		if code != exitDone || !strings.Contains("\n"+stdout, want) {
			t.Errorf("%q: exit %d, %s", typed, code, stdout)
		}
	}
}

func TestACredentialAmongTheArgumentsIsRefusedAndNeverShown(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"key", aCredential}, {"get", aCredential}, {"tenants", "create", "x", aCredential}, {aCredential}, {"outbox", "--" + aCredential},
		{"pay", "--key", aCredential}, {"pay", "-token=" + aCredential}, {"tenants", aCredential},
		{"credentials", "revoke", "x", aCredential}, {"credentials", "revoke", "--token=" + aCredential},
	} {
		stdout, stderr, code := oncepay(t, environment{"ONCEPAY_TOKEN": aCredential}, args...)
		if code != exitFailed || strings.Contains(stdout+stderr, aCredential[25:57]) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: exit %d, %s%s", args, code, stdout, stderr)
		}
		if takesOne := strings.HasPrefix(strings.Join(args, " "), "credentials revoke"); !takesOne && !strings.Contains(stderr, "a credential does not belong among the arguments") {
			t.Errorf("%q: %s", args, stderr)
		}
	}
}
