package testenv

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

// The end of standard input ends the server, so that it does not outlive a test that is killed.
const guard = `
exec 3<&0
"$@" 3<&- &
server=$!
{ read -r _ <&3; kill -KILL $server; } &
wait $server
kill $! 2>/dev/null`

// Serve runs a program until the test ends, with its output in the file log, whose end a failed test
// shows. It returns true once ready returns nil, and false if the program ended before.
func Serve(t testing.TB, log string, ready func() error, program string, args ...string) bool {
	t.Helper()
	output, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()

	cmd := exec.Command("/bin/sh", append([]string{"-c", guard, "sh", program}, args...)...)
	cmd.Stdout, cmd.Stderr = output, output
	alive, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatalf("start %s: %v", program, err)
	}

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the log says why
	}()
	t.Cleanup(func() {
		_ = alive.Close() // it may have ended
		<-ended
		if text, _ := os.ReadFile(log); t.Failed() {
			t.Logf("log of %s, its end:\n%s", program, text[max(0, len(text)-4000):])
		}
	})

	running := true
	Eventually(t, 30*time.Second, func() error {
		select {
		case <-ended:
			running = false
			return nil
		default:
			return ready()
		}
	})
	return running
}
