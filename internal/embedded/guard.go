package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// guardScript is the parent of the server. Its standard input is a pipe whose other end only our
// process holds. The kernel closes it when we die, even by SIGKILL, and the guard then stops the
// server and removes temporary files.
//
// The usual way, Pdeathsig, exists on Linux only, fires when the *thread* that forked ends (which
// Go decides, unless a goroutine stays locked to it), and leaves the directory behind.
//
// The data directory is created under another name first, so a kill in the middle never leaves
// half of one that looks whole. CONT wakes a server that was stopped to imitate a stall. INT is a
// fast shutdown, which ends sessions and writes a checkpoint, so that the next start has nothing
// to recover.
const guardScript = `
bin=$1 dir=$2 temporary=$3 initflags=$4
shift 4
exec 3<&0 </dev/null
if [ ! -e "$dir/data" ]; then
	rm -rf "$dir/data.new"
	"$bin/initdb" -D "$dir/data.new" -U postgres -A trust -E UTF8 --locale=C --no-instructions $initflags 3<&- &&
		mv "$dir/data.new" "$dir/data" || exit 1
fi
"$bin/postgres" -D "$dir/data" "$@" 3<&- &
server=$!
{ read -r _ <&3; kill -CONT $server; kill -INT $server; } &
watcher=$!
wait $server
status=$?
kill $watcher 2>/dev/null
cd /
[ "$temporary" = no ] || rm -rf "$dir"
exit $status
`

// guard is a running guardScript.
type guard struct {
	cmd   *exec.Cmd
	alive io.Closer // our end of the pipe
	log   *os.File  // kept open: readable after its directory is gone
	ended chan struct{}
}

// startGuard runs a server under dir, isolated from us. It does not get our environment (PGDATA,
// PGPORT and the like), our standard output (its reader would wait for the server) or the
// terminal's Ctrl-C (it has its own process group).
func startGuard(
	binaries, dir string, temporary bool, owner *syscall.Credential, flags []string,
) (*guard, error) {
	log, err := os.OpenFile(filepath.Join(dir, "postgres.log"),
		os.O_CREATE|os.O_RDWR|os.O_TRUNC|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log of postgres: %w", err)
	}

	isTemporary, initFlags := "no", ""
	if temporary {
		isTemporary, initFlags = "yes", "--no-sync"
	}

	args := append([]string{"-c", guardScript, "guard", binaries, dir, isTemporary, initFlags}, flags...)
	cmd := exec.Command("/bin/sh", args...)
	cmd.Dir = dir // the server's user may not be allowed in ours
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: owner}

	alive, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start postgres: %w", err), log.Close())
	}

	g := &guard{cmd: cmd, alive: alive, log: log, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is in the log
		close(g.ended)
	}()
	return g, nil
}

// stop asks for a fast shutdown and waits for it. If ctx ends first, it kills the server.
func (g *guard) stop(ctx context.Context) error {
	_ = g.alive.Close() // fails if the guard has already ended

	defer g.log.Close()
	select {
	case <-g.ended:
		return nil
	case <-ctx.Done():
		// The server's children are in groups of their own; they exit when they notice its death.
		_ = syscall.Kill(-g.cmd.Process.Pid, syscall.SIGKILL)
		<-g.ended
		return fmt.Errorf("stop postgres: killed: %w", context.Cause(ctx))
	}
}

// tail returns the end of the server's log.
func (g *guard) tail() string {
	const most = 2000

	info, err := g.log.Stat()
	if err != nil {
		return err.Error()
	}

	text := make([]byte, min(most, info.Size()))
	n, _ := g.log.ReadAt(text, info.Size()-int64(len(text)))
	return strings.TrimSpace(string(text[:n]))
}

// unprivileged returns the user to run Postgres as, or nil for the current one unless that is root.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}

	nobody, err := user.Lookup("nobody")
	if err != nil {
		return nil, fmt.Errorf("find a user to run postgres as, since it refuses root: %w", err)
	}

	// On macOS its ids are negative (-2), so parse them as signed.
	uid, err1 := strconv.ParseInt(nobody.Uid, 10, 64)
	gid, err2 := strconv.ParseInt(nobody.Gid, 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("read the ids of the user nobody: %w", err)
	}

	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}
