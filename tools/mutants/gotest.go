package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// result is what `go test` said.
type result struct {
	passed  map[string]bool // whether a test did, by its name
	failed  string          // the test that failed first, and what it said
	hung    bool
	unbuilt bool
	err     error // nil: everything passed
}

// goTest runs tests. The overlay is in GOFLAGS, so that programs that tests build have the bug as well.
func goTest(ctx context.Context, overlay, tests string, timeout time.Duration, packages ...string) result {
	args := []string{"test", "-json", "-vet=off", "-count=1", "-timeout", timeout.String(), "-run", tests}
	cmd := exec.CommandContext(ctx, "go", append(args, packages...)...)
	if overlay != "" {
		cmd.Env = append(os.Environ(), strings.TrimSpace("GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+overlay))
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return result{err: err}
	}

	r := result{passed: map[string]bool{}}
	said := map[string]string{} // by a test, last
	scanner := bufio.NewScanner(out)
	scanner.Buffer(nil, 16<<20)
	for scanner.Scan() {
		var e event
		if json.Unmarshal(scanner.Bytes(), &e) == nil {
			r.note(e, said)
		}
	}

	r.err = errors.Join(scanner.Err(), cmd.Wait())
	return r
}

// event is a line of `go test -json`, see `go doc test2json`.
type event struct{ Action, Test, Output, FailedBuild string }

var (
	complaint = regexp.MustCompile(`^(\S+\.go:\d+:|panic:) `)
	serverLog = regexp.MustCompile(`: uses (Postgres|Kafka)`)
)

func (r *result) note(e event, said map[string]string) {
	test, _, isSub := strings.Cut(e.Test, "/")
	text := strings.TrimSpace(e.Output)
	r.unbuilt = r.unbuilt || e.FailedBuild != ""
	switch {
	case strings.HasPrefix(text, "panic: test timed out"):
		r.hung = true
	case e.Action == "build-output":
		if said[""] == "" && !strings.HasPrefix(text, "#") {
			said[""] = text
		}
	case complaint.MatchString(text) && !serverLog.MatchString(text):
		said[test] = text
	case (e.Action == "pass" || e.Action == "fail") && !isSub:
		if e.Action == "fail" && r.failed == "" {
			r.failed = strings.TrimSpace(test + " " + said[test])
		}
		if test != "" {
			r.passed[test] = e.Action == "pass"
		}
	}
}
