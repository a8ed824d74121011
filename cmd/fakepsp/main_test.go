package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/fakepsp"
	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/testenv"
)

const soon = 30 * time.Second

// environment returns the getenv of NAME=value.
func environment(variables ...string) func(string) string {
	return func(name string) string {
		for _, v := range variables {
			if value, is := strings.CutPrefix(v, name+"="); is {
				return value
			}
		}
		return ""
	}
}

func TestWrongFlags(t *testing.T) {
	t.Parallel()
	dir, damaged := t.TempDir(), t.TempDir()
	file := filepath.Join(damaged, "journal.jsonl")
	if err := os.WriteFile(file, []byte("text\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	// Words with a "=" in capitals are variables, the others are the command line.
	const key = "PSP_API_KEY=k"
	for want, line := range map[string]string{
		"PSP_API_KEY is not set, for example PSP_API_KEY=psp_secret": "--dir x",
		"--dir is not set, for example --dir /tmp/fakepsp":           key,
		"PSP_WEBHOOK_SECRET is not set, but --webhook-url is":        key + " --dir x --webhook-url http://x",
		"unknown flag: --nope (fakepsp -h explains it)":              key + " --nope",
		`unknown command "x" (fakepsp -h explains it)`:               key + " x",
		"FAKEPSP_LOSE_REPLY=5: must be a share from 0 to 1":          key + " FAKEPSP_LOSE_REPLY=5 --dir x",
		"FAKEPSP_RATE_LIMIT=x: must be a whole number":               key + " FAKEPSP_RATE_LIMIT=x --dir x",
		`down must be "", "unavailable" or "reset"`:                  key + " --down x --dir " + dir,
		"lose_reply, error_before and error_after must be at most 1": key + " --lose-reply 1 --error-after 1 --dir " + dir,
		"open the books " + file + ": line 1, at byte 0: damaged":    key + " --dir " + damaged,
		"open the listener (--addr): listen tcp: address x":          key + " --addr x --dir " + dir,
		`invalid argument "2" for "--slow" flag: must be a share`:    key + " --slow 2",
		`invalid argument "-1s" for "--latency" flag: must be a du`:  key + " --latency -1s",
	} {
		var env, args []string
		for _, word := range strings.Fields(line) {
			if name, _, is := strings.Cut(word, "="); is && name == strings.ToUpper(name) {
				env = append(env, word)
			} else {
				args = append(args, word)
			}
		}

		var stdout, stderr bytes.Buffer
		code := program.Main(newProgram(), args, environment(env...), &stdout, &stderr)
		if code != 1 || stdout.Len() > 0 {
			t.Errorf("%s: code %d, %s", line, code, stdout.String())
		}
		got := stderr.String()
		if !strings.HasPrefix(got, "fakepsp: "+want) || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}

func TestHelpHasExamples(t *testing.T) {
	t.Parallel()
	var stdout bytes.Buffer
	code := program.Main(newProgram(), []string{"-h"}, environment(), &stdout, io.Discard)
	if code != 0 {
		t.Errorf("code %d", code)
	}
	for _, want := range []string{
		"fakepsp --dir /tmp/fakepsp", "--lose-reply SHARE", "PSP_API_KEY", "fakepsp health",
	} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("no %q in\n%s", want, stdout.String())
		}
	}
}

// TestFlagsAreVariables: a container and the demo configure the program by its environment.
func TestFlagsAreVariables(t *testing.T) {
	t.Parallel()
	dir := built(t)
	p := start(t, dir, "FAKEPSP_DECLINE=0.5", "FAKEPSP_SLOW_FOR=3s")

	got, err := http.Get("http://" + p.Addr + "/admin/faults")
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	var f fakepsp.Faults
	if err := json.NewDecoder(got.Body).Decode(&f); err != nil {
		t.Fatal(err)
	}
	if want := (fakepsp.Faults{Decline: 0.5, SlowFor: fakepsp.Duration(3 * time.Second)}); f != want {
		t.Errorf("%+v", f)
	}

	var stderr bytes.Buffer
	env := environment("FAKEPSP_ADDR=" + p.Addr)
	if program.Main(newProgram(), []string{"health"}, env, io.Discard, &stderr) != 0 {
		t.Errorf("health: %s", stderr.String())
	}
}

// TestStopsWhileCallsAreSlow: their pauses are cut short, and they are answered.
func TestStopsWhileCallsAreSlow(t *testing.T) {
	t.Parallel()
	dir := built(t)
	p := start(t, dir, "FAKEPSP_SLOW=1", "FAKEPSP_SLOW_FOR=1h")

	const n = 10
	statuses := make(chan int, n)
	var addr atomic.Pointer[string]
	addr.Store(&p.Addr)
	for i := range n {
		go func() {
			status, _ := charge(t.Context(), &addr, fmt.Sprint(i))
			statuses <- status
		}()
	}
	testenv.Eventually(t, soon, func() error {
		if len(statuses) > 0 {
			t.Fatal("a slow call is answered at once")
		}
		if came := books(t, p.Addr).Totals.Injected["slow_calls"]; came < n {
			return fmt.Errorf("%d calls have come", came)
		}
		return nil
	})

	if err := syscall.Kill(p.Pid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-p.Ended
	answered := 0
	for range n {
		if <-statuses == http.StatusCreated {
			answered++
		}
	}
	if answered != n {
		t.Errorf("%d of %d are answered", answered, n)
	}
}

// TestKilledWhileCharging kills the program again and again. What was answered must be in the
// books, and be found by its key; no key may have charged twice.
func TestKilledWhileCharging(t *testing.T) {
	t.Parallel()
	dir := built(t)
	env := []string{"FAKEPSP_LOSE_REPLY=0.1", "FAKEPSP_ERROR_AFTER=0.1", "FAKEPSP_ERROR_BEFORE=0.1"}

	const clients, kills = 16, 12
	var addr atomic.Pointer[string]
	var answered sync.Map // key → body
	var count atomic.Int64

	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	charging := func(client int) {
		for n := 0; ctx.Err() == nil; n++ {
			key := fmt.Sprintf("%d-%d", client, n)
			// Again until there is an answer, as a careful client does.
			for ctx.Err() == nil {
				if status, body := charge(ctx, &addr, key); status == http.StatusCreated {
					answered.Store(key, body)
					count.Add(1)
					break
				}
			}
		}
	}

	p := start(t, dir, env...)
	addr.Store(&p.Addr)
	for i := range clients {
		all.Go(func() { charging(i) })
	}
	for range kills {
		before := count.Load()
		testenv.Eventually(t, soon, func() error {
			if count.Load() < before+50 {
				return errors.New("too few charges are answered")
			}
			return nil
		})
		p.Kill()
		p = start(t, dir, env...)
		addr.Store(&p.Addr)
	}
	stop()
	all.Wait()

	// Once more, so that what is compared was read back.
	p.Kill()
	p = start(t, dir)
	b := books(t, p.Addr)
	byKey := map[string]fakepsp.BookedCharge{}
	for _, c := range b.Charges {
		if _, twice := byKey[c.Key]; twice {
			t.Errorf("%s charged twice", c.Key)
		}
		byKey[c.Key] = c
	}
	if b.Totals.OperationsTwice != 0 || b.Totals.Injected["replies_lost"] == 0 {
		t.Errorf("%+v", b.Totals)
	}

	addr.Store(&p.Addr)
	n := 0
	answered.Range(func(key, body any) bool {
		n++
		var c fakepsp.Charge
		if err := json.Unmarshal([]byte(body.(string)), &c); err != nil {
			t.Fatal(err)
		}
		if byKey[key.(string)].ID != c.ID {
			t.Errorf("%s was answered %s, the books have %+v", key, c.ID, byKey[key.(string)])
		}
		if status, again := charge(t.Context(), &addr, key.(string)); again != body {
			t.Errorf("%s is answered %d %s, was %s", key, status, again, body)
		}
		return true
	})
	t.Logf("%d answered, %d in the books", n, len(b.Charges))
	if n < kills*50 {
		t.Errorf("only %d charges", n)
	}
}

// built builds the program into a directory of the test.
func built(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := process.Build(t.Context(), dir, nil, "fakepsp"); err != nil {
		t.Fatal(err)
	}
	return dir
}

// start runs the program in dir until the test ends, with the books of its last run.
func start(t *testing.T, dir string, env ...string) *process.Process {
	t.Helper()
	p, err := process.Start(t.Context(), dir, "fakepsp", append([]string{
		"PSP_API_KEY=psp_test", "FAKEPSP_ADDR=127.0.0.1:0",
		"FAKEPSP_DIR=" + filepath.Join(dir, "books"),
	}, env...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return p
}

// charge returns status 0 when there is no answer.
func charge(ctx context.Context, addr *atomic.Pointer[string], key string) (status int, body string) {
	r, err := http.NewRequestWithContext(ctx, "POST", "http://"+*addr.Load()+"/v1/charges",
		strings.NewReader(`{"amount":5,"currency":"usd","payment_method":"tok_visa",`+
			`"metadata":{"operation_id":"`+key+`"}}`))
	if err != nil {
		return 0, ""
	}
	r.GetBody = nil // the transport must not repeat it
	r.Header.Set("Authorization", "Bearer psp_test")
	r.Header.Set("Idempotency-Key", key)

	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, ""
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, ""
	}
	return answer.StatusCode, string(text)
}

func books(t *testing.T, addr string) (b fakepsp.Books) {
	t.Helper()
	answer, err := http.Get("http://" + addr + "/admin/books")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(&b); err != nil {
		t.Fatal(err)
	}
	return b
}
