package embedded

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/xi2/xz"
)

// downloadVersion is what a machine without Postgres gets: the major version that compose.yaml has.
const downloadVersion = "17.11.0"

// download brings the server's binaries into dir and returns where they are. The archive is kept where the Go library
// embedded-postgres keeps its own, under the same name. The library itself offers no step but "start", which refuses
// root, cannot be cancelled and leaves a log behind; the archive is what matters.
func download(ctx context.Context, dir string, owner *syscall.Credential, log *slog.Logger) (string, error) {
	binaries := filepath.Join(dir, "postgres-"+downloadVersion)
	if _, err := os.Stat(binaries); err == nil {
		return filepath.Join(binaries, "bin"), nil
	}
	archive, err := fetch(ctx, log)
	if err != nil {
		return "", fmt.Errorf("download postgres %s: %w", downloadVersion, err)
	}
	half := binaries + ".new" // renamed when complete
	if err := errors.Join(os.RemoveAll(half), extract(archive, half, owner)); err != nil {
		return "", fmt.Errorf("unpack postgres %s: %w", downloadVersion, err)
	}
	if err := os.Rename(half, binaries); err != nil {
		return "", fmt.Errorf("unpack postgres %s: %w", downloadVersion, err)
	}
	return filepath.Join(binaries, "bin"), nil
}

// platform is this machine's name in Maven's.
func platform() string {
	arch := runtime.GOARCH
	if arch == "arm64" {
		arch = "arm64v8"
	}
	if _, err := os.Stat("/etc/alpine-release"); err == nil {
		arch += "-alpine"
	}
	return runtime.GOOS + "-" + arch
}

// fetch returns the archive from the cache or from Maven Central, checked against the checksum there.
func fetch(ctx context.Context, log *slog.Logger) ([]byte, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		home = os.TempDir()
	}
	name := "embedded-postgres-binaries-" + platform()
	cache := filepath.Join(home, ".embedded-postgres-go", name+"-"+downloadVersion+".txz")
	if archive, err := os.ReadFile(cache); err == nil {
		return archive, nil
	}
	url := fmt.Sprintf("https://repo1.maven.org/maven2/io/zonky/test/postgres/%[1]s/%[2]s/%[1]s-%[2]s.jar", name, downloadVersion)
	log.InfoContext(ctx, "downloading postgres", slog.String("url", url))
	jar, err := get(ctx, url)
	if err != nil {
		return nil, err
	}
	sum, err := get(ctx, url+".sha256")
	if err != nil {
		return nil, err
	}
	if have := sha256.Sum256(jar); hex.EncodeToString(have[:]) != strings.TrimSpace(string(sum)) {
		return nil, fmt.Errorf("%s does not have the checksum %s", url, sum)
	}
	archive, err := fromJar(jar)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", url, err)
	}
	return archive, store(cache, archive)
}

func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get %s: %s", url, resp.Status)
	}
	return io.ReadAll(resp.Body)
}

func fromJar(jar []byte) ([]byte, error) {
	z, err := zip.NewReader(bytes.NewReader(jar), int64(len(jar)))
	if err != nil {
		return nil, err
	}
	for _, f := range z.File {
		if path.Ext(f.Name) != ".txz" {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return nil, err
		}
		defer r.Close()
		return io.ReadAll(r)
	}
	return nil, errors.New("no .txz in it")
}

// store writes under another name first: other processes may be reading or storing the same.
func store(cache string, archive []byte) error {
	if err := os.MkdirAll(filepath.Dir(cache), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(cache), "temp_")
	if err != nil {
		return err
	}
	_, err = f.Write(archive)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), cache)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// extract unpacks into dir, which it gives to owner: whoever runs the server also removes its files.
func extract(archive []byte, dir string, owner *syscall.Credential) error {
	x, err := xz.NewReader(bytes.NewReader(archive), 0)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir) // no name in the archive leads out of it
	if err != nil {
		return err
	}
	defer root.Close()
	for t := tar.NewReader(x); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		name := filepath.Clean(h.Name)
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, 0o755)
		case tar.TypeSymlink:
			err = root.Symlink(h.Linkname, name)
		case tar.TypeReg:
			err = writeFile(root, name, os.FileMode(h.Mode).Perm(), t)
		}
		if err != nil {
			return err
		}
	}
	if owner == nil {
		return nil
	}
	return filepath.WalkDir(dir, func(name string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(name, int(owner.Uid), int(owner.Gid)))
	})
}

func writeFile(root *os.Root, name string, mode os.FileMode, from io.Reader) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}
