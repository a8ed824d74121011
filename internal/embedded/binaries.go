package embedded

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

// oldest is the first major version that supports the schema.
const oldest = 15

// installed returns the directory of this machine's newest server binaries, and false if there
// are none.
func installed(ctx context.Context) (dir string, ok bool) {
	var places []string
	if postgres, err := exec.LookPath("postgres"); err == nil {
		places = append(places, filepath.Dir(postgres))
	}

	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", // Debian, Red Hat
		"/opt/homebrew/opt/postgresql@*/bin", "/usr/local/opt/postgresql@*/bin",
	} {
		found, _ := filepath.Glob(pattern) // the pattern is well-formed
		places = append(places, found...)
	}

	newest := oldest - 1
	for _, place := range places {
		// A symbolic link such as /usr/bin/postgres leads to the directory of initdb and the
		// shared files.
		postgres, err := filepath.EvalSymlinks(filepath.Join(place, "postgres"))
		if err != nil {
			continue
		}

		if _, err := os.Stat(filepath.Join(filepath.Dir(postgres), "initdb")); err != nil {
			continue
		}

		if major, err := majorOf(ctx, postgres); err == nil && major > newest {
			dir, newest = filepath.Dir(postgres), major
		}
	}

	return dir, newest >= oldest
}

var majorPattern = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

func majorOf(ctx context.Context, postgres string) (int, error) {
	out, err := exec.CommandContext(ctx, postgres, "--version").Output()
	if err != nil {
		return 0, fmt.Errorf("ask %s for its version: %w", postgres, err)
	}

	match := majorPattern.FindSubmatch(out)
	if match == nil {
		return 0, fmt.Errorf("ask %s for its version: unknown answer %q", postgres, out)
	}

	return strconv.Atoi(string(match[1]))
}
