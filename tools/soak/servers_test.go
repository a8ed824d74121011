package main

import (
	"os"
	"testing"

	"github.com/oncepay/oncepay/tools/rig"
)

// TestFailOver is the fault itself: what was committed is there, and one URL finds both primaries.
func TestFailOver(t *testing.T) {
	t.Parallel()
	dir, err := rig.Dir("soak") // not t.TempDir, where the user nobody may not go
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	c, err := startCluster(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.stop()
	held, err := holdSnapshot(t.Context(), c.owner())
	if err != nil {
		t.Fatal(err)
	}
	if err := rig.Execute(t.Context(), c.owner(), `CREATE TABLE kept (n int); INSERT INTO kept VALUES (7)`); err != nil {
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
	n, err := rig.Query[int](t.Context(), c.owner(), `SELECT n FROM kept`)
	if err != nil || n != 7 {
		t.Errorf("got %d, %v", n, err)
	}
	if err := rig.Execute(t.Context(), c.owner(), `INSERT INTO kept VALUES (8)`); err != nil {
		t.Errorf("the new primary takes no writes: %v", err)
	}
}
