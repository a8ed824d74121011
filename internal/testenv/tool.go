package testenv

import (
	"os"
	"os/exec"
	"testing"
)

// Tool returns the path of the first of these programs that there is. Without any it calls Missing.
func Tool(t testing.TB, missing string, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}

	Missing(t, missing)
	return ""
}

// Missing skips the test, in CI it fails it: a program that it needs is not there. missing says what
// is not tested then, and what to install.
func Missing(t testing.TB, missing string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(missing)
	}
	t.Skip(missing)
}
