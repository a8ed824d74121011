package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// TestTheCurlLinesAnswerAsTheDemoSays does what a visitor does: reads the three lines and pastes them.
func TestTheCurlLinesAnswerAsTheDemoSays(t *testing.T) {
	t.Parallel()
	out, in := io.Pipe()
	ended := make(chan int, 1)
	var stderr bytes.Buffer
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		ended <- run(ctx, nil, in, &stderr)
		in.Close()
	}()
	defer func() { go io.Copy(io.Discard, out) }() // a test that failed must not keep the demo from stopping

	var curls []answer
	var all strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		all.WriteString(lines.Text() + "\n")
		if strings.HasPrefix(lines.Text(), "curl ") {
			curls = append(curls, paste(t, lines.Text()))
		}
		if len(curls) == 3 {
			stop() // as Ctrl-C does
		}
	}
	if code := <-ended; code != 0 {
		t.Fatalf("exit code %d: %s\n%s", code, stderr.String(), all.String())
	}
	if len(curls) != 3 {
		t.Fatalf("%d curl lines:\n%s", len(curls), all.String())
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
	address  = regexp.MustCompile(`http://\S+`)
	headers  = regexp.MustCompile(`-H '([^:]+): ([^']+)'`)
	jsonBody = regexp.MustCompile(`-d '([^']+)'`)
)

// paste sends what a curl line would send.
func paste(t *testing.T, line string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address.FindString(line), strings.NewReader(jsonBody.FindStringSubmatch(line)[1]))
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

func TestAWrongFlagIsOneClearLine(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-colour"}, {"-rate", "-1"}, {"-rate", "many"}, {"-for", "-1s"}, {"-check", "-rate", "5"}, {"now"}} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), args, &stdout, &stderr); code != 1 || strings.Count(stderr.String(), "\n") != 1 || stdout.Len() > 0 {
			t.Errorf("demo %v: exit code %d, %q, %q", args, code, stderr.String(), stdout.String())
		}
	}
}
