package ops

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/migrations"
)

// programs are in the order of a deploy, see docs/operating.md.
var programs = []string{"consumer", "worker", "relay", "api"}

var (
	version = migrations.Version()
	nextSQL = fmt.Sprintf("%05d_next.sql", version+1)
)

// next changes what every payment uses, and says which programs it serves.
func next(oldest int64) string {
	return fmt.Sprintf(`-- oldest program: %d
-- +goose Up
ALTER TABLE payments ADD COLUMN note text;
ALTER TABLE outbox_events ADD COLUMN note text;

-- +goose Down
ALTER TABLE outbox_events DROP COLUMN note;
ALTER TABLE payments DROP COLUMN note;
`, oldest)
}

const changedSQL = "00004_payments.sql"

// Releases: what this checkout is, and what it would be with other files in migrations.
var (
	current = newRelease("current", nil, append(programs, "migrate", "oncepay")...)

	// following is the next release. Its schema serves the current programs.
	following = newRelease("following", map[string]string{nextSQL: next(version)},
		append(programs, "migrate")...)

	// breaking is one whose schema serves only its own programs.
	breaking = newRelease("breaking", map[string]string{nextSQL: next(version + 1)}, "migrate")

	// edited has the next file too, and a change of one that was applied long ago.
	edited = newRelease("edited", map[string]string{
		nextSQL: next(version), changedSQL: text(changedSQL) + "-- A remark.\n",
	}, "migrate")
)

func text(name string) string {
	b, _ := migrations.FS.ReadFile(name) // if it is gone, the test that expects its name fails
	return string(b)
}

// release is a set of programs that were built together.
type release struct {
	name  string
	dir   string
	build func() error // once
}

func newRelease(name string, files map[string]string, programs ...string) *release {
	r := &release{name: name}
	r.build = sync.OnceValue(func() (err error) {
		if r.dir, err = os.MkdirTemp(built, name); err != nil {
			return err
		}

		flags := slices.Clone(testenv.Race)
		if len(files) > 0 {
			overlay, err := overlaid(r.dir, files)
			if err != nil {
				return err
			}
			flags = append(flags, "-overlay="+overlay)
		}
		return process.Build(context.Background(), r.dir, flags, programs...)
	})
	return r
}

// path returns where a program of the release is.
func (r *release) path(t *testing.T, program string) string {
	t.Helper()
	if err := r.build(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(r.dir, program)
}

// result is what a program that ended left.
type result struct {
	code   int
	stdout string
	stderr []string // its lines
}

// run runs a program to its end. onLine, which may be nil, sees the lines of stderr as they come.
// One that was late is run again.
func (r *release) run(
	t *testing.T, program string, env, args []string, onLine func(string),
) (got result) {
	t.Helper()
	for range 3 {
		got = r.runOnce(t, program, env, args, onLine)
		if got.code != 1 || !process.WasLate(strings.Join(got.stderr, "\n")) {
			break
		}
	}
	return got
}

func (r *release) runOnce(
	t *testing.T, program string, env, args []string, onLine func(string),
) (got result) {
	t.Helper()
	path := r.path(t, program)
	ctx, cancel := context.WithTimeout(t.Context(), soon) // it may run instead of ending
	defer cancel()

	var stdout bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append([]string{"ADMIN_ADDR=127.0.0.1:0"}, env...)
	cmd.Stdout = &stdout
	cmd.Stderr = lines(func(line string) {
		got.stderr = append(got.stderr, line)
		if onLine != nil {
			onLine(line)
		}
	})

	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	got.code, got.stdout = cmd.ProcessState.ExitCode(), stdout.String()
	return got
}

// lines calls itself for each line. A program writes each with one call, so none arrives in parts.
type lines func(string)

func (l lines) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		l(strings.TrimSuffix(line, "\n"))
	}
	return len(p), nil
}

// overlaid writes files, and an overlay that puts them into migrations; see `go help build`.
func overlaid(dir string, files map[string]string) (overlay string, err error) {
	replace := map[string]string{}
	folder, err := filepath.Abs("../../migrations")
	for name, text := range files {
		replace[filepath.Join(folder, name)] = filepath.Join(dir, name)
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}

	// go build heeds one overlay. tools/mutants plants a bug with that of GOFLAGS.
	for flag := range strings.FieldsSeq(os.Getenv("GOFLAGS")) {
		if file, found := strings.CutPrefix(flag, "-overlay="); found {
			bug, failed := replaced(file)
			err = errors.Join(err, failed)
			maps.Insert(replace, maps.All(bug))
		}
	}

	overlay = filepath.Join(dir, "overlay.json")
	b, _ := json.Marshal(map[string]any{"Replace": replace}) // strings only
	return overlay, errors.Join(err, os.WriteFile(overlay, b, 0o600))
}

// replaced reads an overlay.
func replaced(file string) (map[string]string, error) {
	b, err := os.ReadFile(file)
	var overlay struct{ Replace map[string]string }
	return overlay.Replace, errors.Join(err, json.Unmarshal(b, &overlay))
}
