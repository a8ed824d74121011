package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// downloadVersion is what a machine without Postgres gets. Its major version is that of
// docker-compose.yml.
const downloadVersion = "17.11.0"

// download puts the server's binaries into dir and returns their directory. The embedded-postgres
// library fetches them, once for all programs that use it, and unpacks them. It would then start
// the server as the current user, and Postgres refuses root. An invalid data path, below a file,
// makes Start stop after unpacking, on every machine; we only need the binaries, and check that
// they are complete.
func download(ctx context.Context, dir string, owner *syscall.Credential) (string, error) {
	binaries := filepath.Join(dir, "postgres-"+downloadVersion)
	server := filepath.Join(binaries, "bin", "postgres")
	if _, err := os.Stat(server); err == nil {
		return filepath.Dir(server), nil
	}

	port, err := freePort()
	if err != nil {
		return "", err
	}

	file, runtime := filepath.Join(dir, "file"), filepath.Join(dir, "unused")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return "", fmt.Errorf("prepare the download of postgres: %w", err)
	}

	// The library leaves its log files behind. Remember the others, to remove only the new ones.
	logs := filepath.Join(os.TempDir(), "embedded_postgres_log*")
	before, _ := filepath.Glob(logs)
	defer func() {
		after, _ := filepath.Glob(logs)
		for _, name := range after {
			if !slices.Contains(before, name) {
				_ = os.Remove(name) // another process of ours may have removed it
			}
		}
	}()

	fetched := make(chan error, 1)
	go func() {
		fetched <- embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
			Version(downloadVersion).Port(uint32(port)).
			BinariesPath(binaries).RuntimePath(runtime).DataPath(filepath.Join(file, "data"))).Start()
	}()

	select {
	case err = <-fetched:
	case <-ctx.Done():
		return "", fmt.Errorf("fetch postgres %s: %w", downloadVersion, context.Cause(ctx))
	}

	// Start always fails: see above. Only missing binaries are an error.
	if _, missing := os.Stat(server); missing != nil {
		return "", fmt.Errorf("fetch postgres %s: %w", downloadVersion, err)
	}

	if err := errors.Join(os.Remove(file), os.RemoveAll(runtime), give(binaries, owner)); err != nil {
		return "", fmt.Errorf("unpack postgres %s: %w", downloadVersion, err)
	}
	return filepath.Dir(server), nil
}

// give makes owner the owner of everything in dir: the user that runs the server also removes its
// files.
func give(dir string, owner *syscall.Credential) error {
	if owner == nil {
		return nil
	}

	return filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(name, int(owner.Uid), int(owner.Gid)))
	})
}
