package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"
)

// TestOnlyPeopleInterrupt: a write to a program that was killed raises SIGPIPE, which is no Ctrl-C. A write that fails
// because nobody reads the output is one.
func TestOnlyPeopleInterrupt(t *testing.T) {
	soft, hard, first, stop := interrupts(t.Context())
	defer stop()
	if !signal.Ignored(syscall.SIGPIPE) {
		t.Error("SIGPIPE counts")
	}

	unread, reader := io.Pipe()
	unread.Close()
	d := &demo{out: reader, unread: first}
	d.say("hello")
	if soft.Err() == nil || hard.Err() != nil {
		t.Errorf("without a reader: soft %v, hard %v", soft.Err(), hard.Err())
	}
}

// TestPrintedCommandsAnswerAsPromised does what a visitor does: pastes what the demo prints.
func TestPrintedCommandsAnswerAsPromised(t *testing.T) {
	t.Parallel()
	out, in := io.Pipe()
	ended := make(chan int, 1)
	var stderr bytes.Buffer
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		ended <- run(ctx, []string{"-page", ""}, in, &stderr)
		in.Close()
	}()
	defer func() { go io.Copy(io.Discard, out) }() // a test that failed must not keep the demo from stopping

	var curls []answer
	var all strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		// The path to this machine's Postgres is as long as it is.
		width := utf8.RuneCountInString(lines.Text())
		if width > 80 && !strings.Contains(lines.Text(), "installed at") {
			t.Errorf("%d columns: %s", width, lines.Text())
		}
		all.WriteString(lines.Text() + "\n")
		if amount, is := strings.CutPrefix(lines.Text(), "pay "); is {
			curls = append(curls, paste(t, all.String(), strings.Fields(amount)[0]))
		}
		if len(curls) == 3 {
			stop() // as Ctrl-C does
		}
	}
	if code := <-ended; code != 0 {
		t.Fatalf("exit code %d: %s\n%s", code, stderr.String(), all.String())
	}
	if len(curls) != 3 {
		t.Fatalf("%d payments:\n%s", len(curls), all.String())
	}
	first, repeat, other := curls[0], curls[1], curls[2]
	if first.status != http.StatusCreated || first.replayed != "false" {
		t.Errorf("a payment: %+v", first)
	}
	if repeat.status != http.StatusCreated || repeat.replayed != "true" || repeat.body != first.body {
		t.Errorf("its repeat: %+v", repeat)
	}
	if other.status != http.StatusUnprocessableEntity {
		t.Errorf("the same key with another amount: %+v", other)
	}
	if !strings.Contains(all.String(), "nothing lost, nothing doubled") || strings.Contains(all.String(), "WRONG") {
		t.Errorf("it did not count well:\n%s", all.String())
	}
}

type answer struct {
	status         int
	replayed, body string
}

var (
	exported = regexp.MustCompile(`(?m)^export (\w+)=(?:\\\n)?(.+)$`)
	address  = regexp.MustCompile(`http://\S+`)
	headers  = regexp.MustCompile(`-H ['"]([^:]+): ([^'"]+)['"]`)
	jsonBody = regexp.MustCompile(`-d '([^']+)'(\d+)'([^']+)'`)
)

// paste sends what the shell function pay would send.
func paste(t *testing.T, text, amount string) answer {
	t.Helper()
	variables := map[string]string{"1": amount}
	for _, v := range exported.FindAllStringSubmatch(text, -1) {
		variables[v[1]] = v[2]
	}
	_, line, _ := strings.Cut(text, "pay() {")
	line = os.Expand(line, func(name string) string { return variables[name] })
	json := strings.Join(jsonBody.FindStringSubmatch(line)[1:], "")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address.FindString(line), strings.NewReader(json))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers.FindAllStringSubmatch(line, -1) {
		r.Header.Set(h[1], h[2])
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header.Get("Idempotent-Replayed"), string(body)}
}

func TestWrongFlagIsOneLine(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-colour"}, {"-rate", "-1"}, {"-rate", "many"}, {"-for", "-1s"}, {"-check", "-rate", "5"}, {"now"}} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), args, &stdout, &stderr); code != 1 || strings.Count(stderr.String(), "\n") != 1 || stdout.Len() > 0 {
			t.Errorf("demo %v: exit code %d, %q, %q", args, code, stderr.String(), stdout.String())
		}
	}
}
