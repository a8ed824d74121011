package structure

import (
	"database/sql"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/oncepay/oncepay/internal/testenv"
)

const root = "../.."

// copyable lists what can be copied: folders of internal, and the one migration that goes with them, if any.
var copyable = map[string]struct {
	folders   []string
	migration string
}{
	"idempotency":            {[]string{"idempotency"}, "00002_idempotency.sql"},
	"outbox write only":      {[]string{"outbox"}, "00003_outbox.sql"},
	"outbox write and relay": {[]string{"outbox", "relay", "relay/kafka"}, "00003_outbox.sql"},
	"inbox":                  {[]string{"inbox"}, "00005_inbox.sql"},
	"client":                 {[]string{"client"}, ""},
	"groupcommit":            {[]string{"groupcommit"}, ""},
}

// Files are copied as they are, except that relay/kafka imports relay by its new path.
func TestACopyableFolderCompilesUnchangedInAnEmptyModule(t *testing.T) {
	t.Parallel()
	for name, c := range copyable {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for _, folder := range c.folders {
				for _, file := range goFiles(t, "internal/"+folder) {
					text := read(t, file)
					if folder == "relay/kafka" {
						text = strings.ReplaceAll(text, module+"internal/relay", "example.com/copied/relay")
					}
					write(t, filepath.Join(dir, folder, filepath.Base(file)), text)
				}
			}

			// The versions that we build with; your module would choose its own.
			goMod := strings.Replace(read(t, filepath.Join(root, "go.mod")), "module github.com/oncepay/oncepay", "module example.com/copied", 1)
			write(t, filepath.Join(dir, "go.mod"), goMod)
			write(t, filepath.Join(dir, "go.sum"), read(t, filepath.Join(root, "go.sum")))
			cmd := exec.Command("go", "build", "-mod=mod", "./...")
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("go build: %v\n%s", err, out)
			}
		})
	}
}

// TestREADMECopyCommands runs the README's lines and compares what they copy with what the package needs.
func TestREADMECopyCommands(t *testing.T) {
	t.Parallel()
	const destination = "../shop/idempotency"
	dir := filepath.Join(t.TempDir(), "idempotency")

	for line := range strings.Lines(read(t, filepath.Join(root, "README.md"))) {
		command, indented := strings.CutPrefix(line, "    ")
		if !indented || !strings.Contains(command, destination) {
			continue
		}
		cmd := exec.Command("sh", "-c", strings.ReplaceAll(command, destination, dir))
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.TrimSpace(command), err, out)
		}
	}

	want := []string{"00002_idempotency.sql", "LICENSE"}
	for _, file := range goFiles(t, "internal/idempotency") {
		want = append(want, filepath.Base(file))
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("copied %v, want %v", got, want)
	}
}

func TestACopyablePackagesMigrationStandsAlone(t *testing.T) {
	t.Parallel()
	for name, c := range copyable {
		migration := c.migration
		if migration == "" {
			continue
		}

		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, err := sql.Open("pgx", testenv.EmptyDatabase(t).URL)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			only := fstest.MapFS{migration: &fstest.MapFile{Data: []byte(read(t, filepath.Join(root, "migrations", migration)))}}
			provider, err := goose.NewProvider(goose.DialectPostgres, db, only)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := provider.Up(t.Context()); err != nil {
				t.Fatalf("up: %v", err)
			}
			if _, err := provider.DownTo(t.Context(), 0); err != nil {
				t.Fatalf("down: %v", err)
			}
		})
	}
}

// goFiles lists the files of a folder that belong to the product.
func goFiles(t *testing.T, folder string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
	if err != nil || len(all) == 0 {
		t.Fatalf("no files in %s: %v", folder, err)
	}
	var files []string
	for _, f := range all {
		if !strings.HasSuffix(f, "_test.go") {
			files = append(files, filepath.ToSlash(f))
		}
	}
	return files
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
