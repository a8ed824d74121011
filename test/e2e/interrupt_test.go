package e2e

import (
	"bufio"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestCtrlCDuringAPaymentLeavesTheKeyAndTheRepeatPays(t *testing.T) {
	t.Parallel()
	c := newChain(t)
	pay := func(address string, more ...string) *exec.Cmd {
		args := []string{"pay", "--from", c.Accounts[0].ID.String(), "--to", c.Accounts[1].ID.String(), "--amount", "2500", "--currency", "USD"}
		cmd := exec.CommandContext(t.Context(), filepath.Join(c.dir, "oncepay"), append(args, more...)...)
		cmd.Env = []string{"ONCEPAY_URL=http://" + address, "ONCEPAY_TOKEN=" + c.Token}
		return cmd
	}
	cmd := pay(silentListener(t))
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(stderr)
	first, err := said.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(first, "the key is ")
	key, _, _ := strings.Cut(rest, ":")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	last, err := io.ReadAll(said)
	if err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the exit code says it
	if code := cmd.ProcessState.ExitCode(); code != 3 || key == "" || strings.Count(string(last), "\n") != 1 || !strings.Contains(string(last), key) {
		t.Fatalf("exit code %d: %s%s", code, first, last)
	}

	for range 2 { // it was never sent, then it is paid; the second time it is a repeat
		if out, err := pay(c.api.Addr, "--key", key).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	c.number(1, `SELECT count(*) FROM payments WHERE route <> 'oncepay seed'`)
}
