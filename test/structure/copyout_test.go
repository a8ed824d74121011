package structure

import (
	"database/sql"
	"io/fs"
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

// TestREADMECopyCommands runs the README's lines: what they copy is what the example needs, without
// the tests; it compiles; and the schema is complete.
func TestREADMECopyCommands(t *testing.T) {
	t.Parallel()
	script := commands(section(t, "README.md", "## Copy from it"))[0]
	script, _, found := strings.Cut(script, " && go run .")
	if !found {
		t.Fatal("the README does not run what it copies")
	}
	shop, schema := filepath.Join(t.TempDir(), "shop"), filepath.Join(t.TempDir(), "schema.sql")
	shell(t, root, script+" && go build -o "+os.DevNull+" .", shop, `psql() { cat >>`+schema+`; }`)

	want := []string{"00002_idempotency.sql", "00003_outbox.sql", "go.mod", "go.sum", "main.go", "orders.sql"}
	for _, folder := range []string{"idempotency", "outbox", "relay", "relay/kafka"} {
		want = append(want, "internal/"+folder+"/LICENSE")
		for _, file := range goFiles(t, "internal/"+folder) {
			want = append(want, "internal/"+folder+"/"+filepath.Base(file))
		}
	}
	slices.Sort(want)
	if got := filesOf(t, shop); !slices.Equal(got, want) {
		t.Errorf("copied %v, want %v", got, want)
	}
	execute(t, read(t, schema))
}

// TestREADMEFollowsFixes applies a fix of ours to a copy that its owner has edited.
func TestREADMEFollowsFixes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ours, shop := filepath.Join(dir, "oncepay"), filepath.Join(dir, "shop")
	const file, test = "internal/idempotency/doc.go", "internal/idempotency/a_test.go"
	text := read(t, filepath.Join(root, file))
	const own = "\n// Shop's own.\n"
	fixed := strings.Replace(text, "# Promise", "# Promise, fixed", 1)
	commit := `git init -q -b main . && git add . && git -c user.name=t -c user.email=t@there.test commit -q -m t`
	for at, version := range map[string]string{ours: text, shop: text + own} {
		write(t, filepath.Join(at, file), version)
		shell(t, at, commit, "", "")
	}
	copied := strings.TrimSpace(shell(t, ours, "git rev-parse HEAD", "", ""))
	write(t, filepath.Join(ours, file), fixed)
	write(t, filepath.Join(ours, test), "package idempotency\n")
	shell(t, ours, commit, "", "")

	follow := commands(section(t, "README.md", "## Copy from it"))[1]
	shell(t, shop, strings.ReplaceAll(follow, "COMMIT", copied), "", "")
	if got, want := read(t, filepath.Join(shop, file)), fixed+own; got != want {
		t.Errorf("after the fix %s is %q, want %q", file, got, want)
	}
	if _, err := os.Stat(filepath.Join(shop, test)); err == nil {
		t.Error("a test was copied")
	}
}

// shell runs a script in dir and returns what it printed. shop replaces "../shop".
func shell(t *testing.T, dir, script, shop, before string) string {
	t.Helper()
	if shop != "" {
		script = strings.ReplaceAll(script, "../shop", shop)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", before+"\n"+script)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s\n%v\n%s", script, err, out)
	}
	return string(out)
}

// filesOf lists the files below dir, without what sed has kept.
func filesOf(t *testing.T, dir string) (files []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) != ".bak" {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(files)
	return files
}

// execute runs SQL in a database of its own.
func execute(t *testing.T, sql string) {
	t.Helper()
	if _, err := testenv.EmptyDatabase(t).Pool(t, "").Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
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
