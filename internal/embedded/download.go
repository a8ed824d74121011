package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// downloadVersion is what a machine without Postgres gets: the major version that docker-compose.yml has.
const downloadVersion = "17.11.0"

// download brings the server's binaries into dir and returns where they are. The library embedded-postgres fetches them,
// once for all programs that use it, and unpacks them; the rest it would do as the current user, and Postgres refuses root.
// So it is given a place for its data that cannot be: below a file. It ends with an error there, on every machine, and what
// counts is whether the binaries are complete.
func download(ctx context.Context, dir string, owner *syscall.Credential, log *slog.Logger) (string, error) {
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
	logs, _ := filepath.Glob(libraryLogs)
	log.InfoContext(ctx, "fetching postgres", slog.String("version", downloadVersion))
	fetched := make(chan error, 1)
	go func() {
		fetched <- embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().Version(downloadVersion).Port(uint32(port)).
			BinariesPath(binaries).RuntimePath(runtime).DataPath(filepath.Join(file, "data"))).Start()
	}()
	defer removeLogs(logs)
	select {
	case err = <-fetched:
	case <-ctx.Done():
		return "", fmt.Errorf("fetch postgres %s: %w", downloadVersion, context.Cause(ctx))
	}
	if _, missing := os.Stat(server); missing != nil {
		return "", fmt.Errorf("fetch postgres %s: %w", downloadVersion, err)
	}
	if err := errors.Join(os.Remove(file), os.RemoveAll(runtime), give(binaries, owner)); err != nil {
		return "", fmt.Errorf("unpack postgres %s: %w", downloadVersion, err)
	}
	return filepath.Dir(server), nil
}

// libraryLogs are files that the library makes for each server and leaves behind.
var libraryLogs = filepath.Join(os.TempDir(), "embedded_postgres_log*")

// removeLogs removes those that were not there before.
func removeLogs(before []string) {
	old := map[string]bool{}
	for _, name := range before {
		old[name] = true
	}
	after, _ := filepath.Glob(libraryLogs)
	for _, name := range after {
		if !old[name] {
			_ = os.Remove(name) // or another process of ours was faster
		}
	}
}

// give makes owner the owner of everything in dir: whoever runs the server also removes its files.
func give(dir string, owner *syscall.Credential) error {
	if owner == nil {
		return nil
	}
	return filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(name, int(owner.Uid), int(owner.Gid)))
	})
}
