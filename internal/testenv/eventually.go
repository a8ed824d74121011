package testenv

import (
	"testing"
	"time"
)

// Eventually repeats condition every 5 ms until it returns nil. After timeout it fails the test
// with the last error. It runs condition at least once. timeout is 30 s or more: a pause of the machine
// is no failure.
func Eventually(t testing.TB, timeout time.Duration, condition func() error) {
	t.Helper()

	timeout = max(timeout, 30*time.Second)
	deadline := time.After(timeout)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()

	for {
		err := condition()
		if err == nil {
			return
		}

		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %s: %v", timeout, err)
		}
	}
}
