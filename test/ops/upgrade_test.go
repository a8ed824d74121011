package ops

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestPgUpgrade: with relay adopt nothing is lost and nothing comes twice. Without it the relay
// says what to type, and a restored copy that was upgraded is not adopted.
func TestPgUpgrade(t *testing.T) {
	t.Parallel()
	for _, delivery := range []string{"exactly-once", "at-least-once"} {
		t.Run(delivery, func(t *testing.T) {
			t.Parallel()
			dir := place(t)
			old := startCluster(t, filepath.Join(dir, "old"), nil)
			pgUpgrade, bin := old.tool("pg_upgrade"), filepath.Dir(old.tool("pg_upgrade"))
			old.create()
			old.migrate()
			r := newRelay(old, delivery)
			old.sell("one")
			r.drain()

			// A backup, then more payments.
			old.stop()
			copyOf(t, old.dir, filepath.Join(dir, "backup"))
			old.start()
			old.sell("two")
			r.drain()
			id := query[int64](old, `SELECT system_identifier FROM pg_control_system()`)
			old.sell("unsent") // what an operator should not leave, and may
			old.stop()

			upgrade := func(from, to string) *cluster {
				c := startCluster(t, filepath.Join(dir, to), nil)
				c.stop()
				asOwnerOf(t, c.dir, pgUpgrade, "-b", bin, "-B", bin, "-d", filepath.Join(dir, from, "data"),
					"-D", filepath.Join(c.dir, "data"), "-U", "postgres", "-s", c.dir)
				c.start()
				return c
			}
			if delivery == "exactly-once" {
				restored := r.at(upgrade("backup", "restored"))
				restored.adopt("the database was restored")
				restored.refuses("run `relay adopt`")
				restored.stop()
			}

			upgraded := r.at(upgrade("old", "new"))
			if query[int64](upgraded.cluster, `SELECT system_identifier FROM pg_control_system()`) == id {
				t.Fatal("pg_upgrade kept the system identifier: nothing is tested")
			}
			upgraded.refuses("run `relay adopt`")
			upgraded.adopt("")
			upgraded.drain()
			upgraded.sell("three")
			upgraded.drain()
			upgraded.complete()

			// The old one does not go on.
			upgraded.stop()
			old.start()
			r.refuses("run `relay adopt`")
			r.adopt("the database was restored")
		})
	}
}

func copyOf(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
