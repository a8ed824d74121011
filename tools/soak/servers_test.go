package main

import (
	"os"
	"testing"
)

// TestFailOver is the fault itself: what was committed is there, and one URL finds both primaries.
func TestFailOver(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "oncepay-soak-") // not t.TempDir, where the user nobody may not go
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := startCluster(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.stop()
	held, err := holdSnapshot(t.Context(), c.owner())
	if err != nil {
		t.Fatal(err)
	}
	if err := execute(t.Context(), c.owner(), `CREATE TABLE kept (n int); INSERT INTO kept VALUES (7)`); err != nil {
		t.Fatal(err)
	}
	if err := held.held(t.Context()); err != nil {
		t.Error(err)
	}

	if err := c.failOver(t.Context()); err != nil {
		t.Fatal(err)
	}
	if held.held(t.Context()) == nil {
		t.Error("the snapshot outlived its primary")
	}
	n, err := query[int](t.Context(), c.owner(), `SELECT n FROM kept`)
	if err != nil || n != 7 {
		t.Errorf("got %d, %v", n, err)
	}
	if err := execute(t.Context(), c.owner(), `INSERT INTO kept VALUES (8)`); err != nil {
		t.Errorf("the new primary takes no writes: %v", err)
	}
	if what, err := bloat(t.Context(), c.owner()); err != nil || what == "" {
		t.Errorf("bloat: %q, %v", what, err)
	}
}
