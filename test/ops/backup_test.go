package ops

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/oncepay/oncepay/internal/testenv"
)

// TestBackup: a backup that was taken while payments went on, and the log since, restored to a time
// as docs/operating.md says. The relay sees that the database went back, and goes on as documented.
func TestBackup(t *testing.T) {
	t.Parallel()
	dir := place(t)
	shown := newRunbook(t, "Back up and restore")
	shown.place("/mnt", filepath.Join(dir, "lost"))
	c := startCluster(t, filepath.Join(dir, "lost"), shown.settings("archive_mode"))
	asOwnerOf(t, c.dir, "/bin/mkdir", "wal", "backup")
	c.create()
	c.migrate()
	r := newRelay(c, "exactly-once")
	c.sell("before")
	r.drain()

	// Meanwhile the service goes on.
	busy := make(chan struct{})
	go func() {
		defer close(busy)
		for i := range 5 {
			got := current.run(t, "oncepay", []string{"DATABASE_URL=" + c.url("postgres")},
				append(slices.Clone(seed), "--tenant", fmt.Sprint("during-", i)), nil)
			if got.code != 0 {
				t.Errorf("seed: %+v", got)
			}
		}
	}()
	backup := shown.command("pg_basebackup")
	backup[slices.Index(backup, `"$BACKUP_URL"`)] = c.server.URL("postgres", "postgres")
	asOwnerOf(t, c.dir, c.tool("pg_basebackup"), backup[1:]...)
	asOwnerOf(t, c.dir, c.tool("pg_verifybackup"), shown.command("pg_verifybackup")[1:]...)
	<-busy

	c.sell("behind")
	r.drain()
	tenants := query[string](c, tenantsOf)
	until := query[string](c, `SELECT clock_timestamp()::text`)
	c.sell("forgotten")
	r.drain()
	sent := query[[]string](c, sortedEvents)

	last := query[string](c, `SELECT pg_walfile_name(pg_switch_wal())`)
	testenv.Eventually(t, soon, func() error {
		if kept := query[string](c, `SELECT coalesce(last_archived_wal, '') FROM pg_stat_archiver`); kept < last {
			return fmt.Errorf("%s is not in the archive, only %q", last, kept)
		}
		return nil
	})
	shown.archivesAgain(c, last)
	wal := filepath.Join(c.dir, "wal")
	cleanup := shown.command("pg_archivecleanup")
	asOwnerOf(t, c.dir, c.tool("pg_archivecleanup"), cleanup[1], only(t, wal, "*.backup"))
	c.stop()
	archived := names(t, wal)

	// Another server, with the backup's data.
	restored := startCluster(t, filepath.Join(dir, "restored"), nil)
	restored.stop()
	data := filepath.Join(restored.dir, "data")
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	asOwnerOf(t, restored.dir, "/bin/cp", "-a", backup[slices.Index(backup, "-D")+1], data)
	asOwnerOf(t, restored.dir, "/usr/bin/touch", filepath.Join(data, "recovery.signal"))
	restored.settings = shown.settings("archive_mode") // as in a backup's own postgresql.conf
	maps.Copy(restored.settings, shown.settings("restore_command"))
	restored.settings["recovery_target_time"] = until
	restored.start()
	testenv.Eventually(t, soon, func() error {
		if query[bool](restored, `SELECT pg_is_in_recovery()`) {
			return fmt.Errorf("it still reads the log")
		}
		return nil
	})

	if diff := cmp.Diff(tenants, query[string](restored, tenantsOf)); diff != "" {
		t.Fatalf("tenants (-at that time +restored):\n%s", diff)
	}
	restored.statement(`SELECT pg_switch_wal()`)
	if diff := cmp.Diff(archived, names(t, wal)); diff != "" {
		t.Errorf("the restored server writes to the archive (-before +after):\n%s", diff)
	}
	again := r.at(restored)
	again.refuses("the database was restored")
	restored.statement(`UPDATE outbox_cursors SET epoch = gen_random_uuid() WHERE relay = 'main'`)
	restored.sell("after")
	again.drain()

	// What was forgotten stays on the topics: see "After a restore".
	have := query[[]string](restored, sortedEvents)
	for _, id := range sent {
		if !slices.Contains(have, id) {
			have = append(have, id)
		}
	}
	slices.Sort(have)
	if diff := cmp.Diff(have, again.published()); diff != "" {
		t.Errorf("on the topics (-outboxes +topics):\n%s", diff)
	}
}

const tenantsOf = `SELECT string_agg(name, ' ' ORDER BY name) FROM tenants`

// runbook is a section of docs/operating.md, whose settings and commands a test takes from there.
type runbook struct {
	t    *testing.T
	text string
}

func newRunbook(t *testing.T, heading string) *runbook {
	t.Helper()
	text, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("docs/operating.md has no section %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	return &runbook{t, section}
}

// place puts a directory where the runbook names one of its own.
func (r *runbook) place(shown, real string) { r.text = strings.ReplaceAll(r.text, shown, real) }

// settings returns the block of server settings that begins with this one.
func (r *runbook) settings(first string) map[string]string {
	r.t.Helper()
	_, block, found := strings.Cut(r.text, "\n    "+first+" = ")
	if !found {
		r.t.Fatalf("the section has no setting %s", first)
	}
	block, _, _ = strings.Cut("    "+first+" = "+block, "\n\n")

	settings := map[string]string{}
	for line := range strings.Lines(block) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " = ")
		settings[name] = strings.Trim(value, "'")
	}
	return settings
}

// names are those of a folder's files.
func names(t *testing.T, folder string) (all []string) {
	t.Helper()
	files, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		all = append(all, f.Name())
	}
	return all
}

// only returns the name of the one file of the folder that is like the pattern.
func only(t *testing.T, folder, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(folder, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s in %s: %q, %v", pattern, folder, found, err)
	}
	return filepath.Base(found[0])
}

// archivesAgain runs the command for a file that is in the archive: it must take the same one, as
// after a crash, and refuse another.
func (r *runbook) archivesAgain(c *cluster, file string) {
	r.t.Helper()
	archive := func(path string) error {
		command := r.settings("archive_mode")["archive_command"]
		command = strings.NewReplacer("%p", path, "%f", file).Replace(command)
		return exec.CommandContext(r.t.Context(), "/bin/sh", "-c", command).Run()
	}

	kept, other := filepath.Join(c.dir, "wal", file), filepath.Join(r.t.TempDir(), file)
	if err := os.WriteFile(other, []byte("of another server"), 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := archive(kept); err != nil {
		r.t.Errorf("the same file again: %v", err)
	}
	if err := archive(other); err == nil {
		r.t.Error("another file took its place")
	}
}

// command returns the words of the command of this name.
func (r *runbook) command(name string) []string {
	r.t.Helper()
	_, line, found := strings.Cut(r.text, "\n    "+name+" ")
	if !found {
		r.t.Fatalf("the section has no command %s", name)
	}
	line, _, _ = strings.Cut(line, "\n")
	return strings.Fields(name + " " + line)
}
