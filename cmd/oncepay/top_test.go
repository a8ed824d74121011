package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/oncepay/oncepay/internal/top"
	"github.com/oncepay/oncepay/internal/top/screen"
)

// showing serves the metrics of a program as it showed them once, and returns its address.
func showing(t *testing.T, program string) string {
	t.Helper()
	text, err := os.ReadFile("../../internal/top/testdata/" + program + "-1.txt")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(text) }))
	t.Cleanup(server.Close)
	return server.URL
}

func TestTopOnceShowsAllPrograms(t *testing.T) {
	t.Parallel()
	args := []string{"top", "--every", "500ms",
		"--relay", showing(t, "relay") + "," + showing(t, "relay") + "/metrics", "--relay", showing(t, "relay") + "/",
		"--api", showing(t, "api"), "--consumer", strings.TrimPrefix(showing(t, "consumer"), "http://"), "--worker", showing(t, "worker")}
	out := must(t, nil, append(args, "--once")...)
	for _, want := range []string{"992 new since its start", "the lead changes", "days ahead     7", "breaker   closed", "new          0/s"} {
		if !strings.Contains(out, want) {
			t.Errorf("the screen lacks %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "\x1b") || strings.Contains(out, "quit") {
		t.Errorf("it is not for a pipe:\n%s", out)
	}

	// Standard output is no terminal here, so it needs no --once.
	var f top.Figures
	mustJSON(t, &f, nil, args...)
	if f.API.New != 992 || f.Relay.Leaders != 3 || len(f.Instances) != 6 {
		t.Errorf("%+v", f)
	}
}

func TestTopWithoutAProgramIsOneLine(t *testing.T) {
	t.Parallel()
	args := []string{"top", "--once"}
	for _, name := range top.Programs {
		args = append(args, "--"+name, "127.0.0.1:1")
	}
	stdout, stderr, code := oncepay(t, nil, args...)
	want := "oncepay: no program can be reached, api at 127.0.0.1:1: connection refused: " +
		"are --api, --relay, --consumer and --worker right?\n"
	if code != exitFailed || stdout != "" || stderr != want {
		t.Errorf("exit %d, %s%s", code, stdout, stderr)
	}
}

func TestTopFlagsThatAreWrong(t *testing.T) {
	t.Parallel()
	const address = "it must be an address such as 127.0.0.1:9090 or http://relay:9091/metrics"
	for args, line := range map[string]string{
		"--api 9090":                  `invalid argument "9090" for "--api" flag: ` + address,
		"--api https://host:1":        `invalid argument "https://host:1" for "--api" flag: ` + address,
		"--relay :9091":               `invalid argument ":9091" for "--relay" flag: ` + address,
		"--relay a:1,":                `invalid argument "a:1," for "--relay" flag: ` + address,
		"--worker http://a:1/x?y":     `invalid argument "http://a:1/x?y" for "--worker" flag: ` + address,
		"--consumer http://u@a:1/b/c": `invalid argument "http://u@a:1/b/c" for "--consumer" flag: ` + address,
		"--every 2":                   `invalid argument "2" for "--every" flag: it must be a duration from 500ms to 1m, such as 2s`,
		"--every 1ms":                 `invalid argument "1ms" for "--every" flag: it must be a duration from 500ms to 1m, such as 2s`,
		"now":                         `unexpected argument "now"`,
	} {
		stdout, stderr, code := oncepay(t, nil, append([]string{"top"}, strings.Fields(args)...)...)
		if want := "oncepay: " + line + " (oncepay top -h explains it)\n"; code != exitFailed || stdout != "" || stderr != want {
			t.Errorf("%q: exit %d, %s%s", args, code, stdout, stderr)
		}
	}
}

// TestTopPausesExplainsAndQuits: what keys do, without a terminal.
func TestTopPausesExplainsAndQuits(t *testing.T) {
	t.Parallel()
	api := top.Target{Program: top.API, Address: strings.TrimPrefix(showing(t, "api"), "http://")}
	var l tea.Model = live{
		ctx: t.Context(), watch: top.NewWatch([]top.Target{api}), trend: top.NewTrend(time.Second),
		view: screen.View{Every: time.Second},
	}
	send := func(m tea.Msg) (next tea.Cmd) {
		l, next = l.Update(m)
		return next
	}
	text := func() string { return l.View().Content }

	send(tea.WindowSizeMsg{Width: 90, Height: 30})
	if lines := strings.Count(text(), "\n") + 1; lines != 30 || !strings.Contains(text(), "no answer yet") {
		t.Errorf("before the first look, %d lines:\n%s", lines, text())
	}
	send(l.Init()())
	if !strings.Contains(text(), "992 new since its start") {
		t.Errorf("after the first look:\n%s", text())
	}

	send(tea.KeyPressMsg{Code: tea.KeySpace, Text: " "})
	before := text()
	next := send(again{})
	if send(next()); text() != before || !strings.Contains(before, "PAUSED at ") {
		t.Errorf("paused, it changes:\n%s\n%s", before, text())
	}
	send(tea.KeyPressMsg{Code: tea.KeySpace, Text: " "})
	if send(l.Init()()); strings.Contains(text(), "PAUSED") {
		t.Errorf("it does not go on:\n%s", text())
	}

	send(tea.KeyPressMsg{Code: '?', Text: "?"})
	if !strings.Contains(text(), "space pause and go on") {
		t.Errorf("no help:\n%s", text())
	}
	send(tea.KeyPressMsg{Code: '?', Text: "?"})
	if strings.Contains(text(), "space pause and go on") {
		t.Error("help does not go away")
	}

	quit := send(tea.KeyPressMsg{Code: 'q', Text: "q"})
	if quit == nil {
		t.Fatal("q does nothing")
	}
	if _, quits := quit().(tea.QuitMsg); !quits {
		t.Error("q does not quit")
	}
}
