package ops

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/testenv"
)

// TestMoveByReplication takes the steps of docs/operating.md to another cluster, whose transaction
// ids are far behind, and what relay adopt says when one is left out.
func TestMoveByReplication(t *testing.T) {
	t.Parallel()
	dir := place(t)
	logical := map[string]string{"wal_level": "logical"}
	old := startCluster(t, filepath.Join(dir, "old"), logical)
	bin := filepath.Dir(old.tool("pg_dumpall"))
	fresh := startCluster(t, filepath.Join(dir, "new"), nil)
	old.create()
	old.migrate()
	fresh.database()
	old.ahead()
	r := newRelay(old, "exactly-once")
	r.sell("one")
	r.drain()

	steps := documented(t)
	shell := func(script string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", script)
		cmd.Env = []string{
			"PATH=" + bin + ":" + os.Getenv("PATH"), "OLD=" + old.url("postgres"), "NEW=" + fresh.url("postgres"),
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
		return string(out)
	}
	await := func(words string) {
		t.Helper()
		testenv.Eventually(t, soon+time.Minute, func() error {
			if out := shell(steps[2]); !strings.HasPrefix(out, words) {
				return fmt.Errorf("step 2 shows %q", out)
			}
			return nil
		})
	}

	old.statement(steps[0])
	shell(steps[1])
	await("t\n")  // the first copy is there, the schema's version with it
	r.sell("two") // payments go on
	moved, from := r.at(fresh), []string{"--from", old.url("relay")}
	moved.adopt("events that are not sent", from...)
	r.drain()
	await("t\nt\n")

	moved.refuses("run `relay adopt`")
	moved.adopt("a subscription is still here", from...)
	link, sequences, _ := strings.Cut(steps[3], "\n")
	shell(link)
	moved.adopt("the sequence", from...)
	shell(sequences)
	moved.adopt("of another cluster", "--from", fresh.url("relay"))
	moved.adopt("", from...)
	moved.adopt("", from...) // again, as after a crash in the middle
	moved.adopt("this database is the source itself", "--from", fresh.url("relay"))

	moved.sell("three")
	moved.drain()
	r.refuses("run `relay adopt`")
	moved.sell("four")
	moved.drain()
	moved.complete()
	moved.adopt("the database was restored", from...)

	shell(steps[5])
	r.refuses("read only connection")
}

// documented returns the blocks of "By logical replication".
func documented(t *testing.T) (blocks []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n**By logical replication.**")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, block := range strings.Split(section, "\n\n") {
		if strings.HasPrefix(block, "       ") {
			blocks = append(blocks, strings.ReplaceAll(strings.TrimPrefix(block, "       "), "\n       ", "\n"))
		}
	}
	if len(blocks) != 6 {
		t.Fatalf("docs/operating.md has %d blocks, want 6", len(blocks))
	}
	return blocks
}

// ahead lets the cluster have had many transactions, so that its ids are of the other's future.
func (c *cluster) ahead() {
	c.t.Helper()
	c.statement(`DO $$ BEGIN FOR i IN 1..50000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$`)
}
