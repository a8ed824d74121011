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

// try runs the program with a command line that must fail, and returns what it complains about.
func try(t *testing.T, env map[string]string, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	getenv := func(name string) string { return env[name] }
	if code := program.Main(newProgram(), args, getenv, &stdout, &stderr); code != 1 || stdout.Len() > 0 {
		t.Errorf("%v: code %d, %s", args, code, stdout.String())
	}
	return stderr.String()
}

func TestWrongFlags(t *testing.T) {
	t.Parallel()
	damaged := t.TempDir()
	if err := os.WriteFile(filepath.Join(damaged, "journal.jsonl"), []byte("text\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	key := map[string]string{"PSP_API_KEY": "k"}

	for want, c := range map[string]struct {
		env  map[string]string
		args []string
	}{
		"PSP_API_KEY is not set, for example PSP_API_KEY=psp_secret":          {nil, []string{"--dir", "x"}},
		"--dir is not set, for example --dir /tmp/fakepsp":                    {key, nil},
		"PSP_WEBHOOK_SECRET is not set, but --webhook-url is":                 {key, []string{"--dir", "x", "--webhook-url", "http://x"}},
		"unknown flag: --nope (fakepsp -h explains it)":                       {key, []string{"--nope"}},
		`unknown command "x" (fakepsp -h explains it)`:                        {key, []string{"x"}},
		"FAKEPSP_LOSE_REPLY=5: must be a share from 0 to 1":                   {map[string]string{"PSP_API_KEY": "k", "FAKEPSP_DIR": "x", "FAKEPSP_LOSE_REPLY": "5"}, nil},
		"FAKEPSP_RATE_LIMIT=x: must be a whole number":                        {map[string]string{"PSP_API_KEY": "k", "FAKEPSP_DIR": "x", "FAKEPSP_RATE_LIMIT": "x"}, nil},
		`down must be "", "unavailable" or "reset"`:                           {key, []string{"--dir", t.TempDir(), "--down", "x"}},
		"lose_reply, error_before and error_after must be at most 1":          {key, []string{"--dir", t.TempDir(), "--lose-reply", "1", "--error-after", "0.1"}},
		"open the books " + damaged + "/journal.jsonl: line 1, at byte 0":     {key, []string{"--dir", damaged}},
		"open the listener (--addr): listen tcp: address x: missing port":     {key, []string{"--dir", t.TempDir(), "--addr", "x"}},
		`invalid argument "2" for "--slow" flag: must be a share from 0 to 1`: {key, []string{"--slow", "2"}},
		`invalid argument "-1s" for "--latency" flag: must be a duration`:     {key, []string{"--latency", "-1s"}},
	} {
		got := try(t, c.env, c.args...)
		if !strings.HasPrefix(got, "fakepsp: "+want) || strings.Count(got, "\n") != 1 {
			t.Errorf("%v: %s, want %s", c.args, got, want)
		}
	}
}

func TestHelpHasExamples(t *testing.T) {
	t.Parallel()
	var stdout bytes.Buffer
	none := func(string) string { return "" }
	if code := program.Main(newProgram(), []string{"-h"}, none, &stdout, io.Discard); code != 0 {
		t.Errorf("code %d", code)
	}
	for _, want := range []string{"fakepsp --dir /tmp/fakepsp", "--lose-reply SHARE", "PSP_API_KEY", "fakepsp health"} {
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
	getenv := func(name string) string { return map[string]string{"FAKEPSP_ADDR": p.Addr}[name] }
	if code := program.Main(newProgram(), []string{"health"}, getenv, io.Discard, &stderr); code != 0 {
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
		if n := len(statuses); n > 0 {
			t.Fatal("a slow call is answered at once")
		}
		if executed := books(t, p.Addr).Totals.ChargesSucceeded; executed == 0 {
			return errors.New("none has come")
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
	// Those whose request had not been read yet are closed.
	if answered < n/2 {
		t.Errorf("%d are answered", answered)
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
		"PSP_API_KEY=psp_test", "FAKEPSP_ADDR=127.0.0.1:0", "FAKEPSP_DIR=" + filepath.Join(dir, "books"),
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
