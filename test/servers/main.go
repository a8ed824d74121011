// Command servers runs another command with one Postgres and one Kafka for its tests, and removes
// both afterwards. Package testenv says which ones it takes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/oncepay/oncepay/internal/testenv"
)

const usage = `usage: servers [-docker] -- command [argument ...]

Starts one Postgres and one Kafka, runs the command with TEST_DATABASE_URL and
TEST_KAFKA_BROKERS set, stops and removes them, and exits with the command's
exit code.

  -docker   use containers, whatever TEST_DATABASE_URL, TEST_KAFKA_BROKERS and
            TEST_SERVERS say

Examples:
  go run ./test/servers -- go test -race ./...
  go run ./test/servers -docker -- go test -race -count=1 ./...
  EMBEDDED_POSTGRES=download go run ./test/servers -- go test ./internal/outbox
`

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr))
}

func run(
	ctx context.Context, args []string, getenv func(string) string,
	stdin io.Reader, stdout, stderr io.Writer,
) int {
	flags := flag.NewFlagSet("servers", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are printed below, once
	docker := flags.Bool("docker", false, "")

	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "servers:", err)
		return 1
	case flags.NArg() == 0:
		fmt.Fprintln(stderr, "servers: no command given: see servers -h")
		return 1
	}

	if *docker {
		outer := getenv
		getenv = func(name string) string {
			switch name {
			case "TEST_DATABASE_URL", "TEST_KAFKA_BROKERS":
				return ""
			case "TEST_SERVERS":
				return "docker"
			}
			return outer(name)
		}
	}

	// From here on a signal must not end this process: it has servers to remove.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	postgres, broker, err := start(ctx, getenv, signals)
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if err := errors.Join(postgres.Stop(ctx), broker.Stop(ctx)); err != nil {
			fmt.Fprintln(stderr, "servers: stop:", err)
		}
	}()
	if err != nil {
		fmt.Fprintln(stderr, "servers:", err)
		return 1
	}
	fmt.Fprintf(stdout, "servers: %s\nservers: %s\n", postgres.Name, broker.Name)

	cmd := exec.Command(flags.Arg(0), flags.Args()[1:]...)
	cmd.Env = append(os.Environ(),
		"TEST_DATABASE_URL="+postgres.Address, "TEST_KAFKA_BROKERS="+broker.Address)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr

	// In a group of its own it gets a terminal's Ctrl-C once, from us, and so do its children.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return wait(cmd, signals, stderr)
}

// start starts both at once, and gives up at a signal. It returns what it started even if it fails.
func start(
	ctx context.Context, getenv func(string) string, signals <-chan os.Signal,
) (postgres, broker testenv.Server, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	started := make(chan struct{})
	defer close(started)
	go func() {
		select {
		case s := <-signals:
			cancel(fmt.Errorf("ended by %v", s))
		case <-started:
		}
	}()

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) { postgres, err = testenv.StartPostgres(ctx, getenv); return err })
	g.Go(func() (err error) { broker, err = testenv.StartBroker(ctx, getenv); return err })
	err = g.Wait()
	return postgres, broker, err
}

// wait runs the command, forwards signals to all its processes, and returns its exit code as a shell
// does.
func wait(cmd *exec.Cmd, signals <-chan os.Signal, stderr io.Writer) int {
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(stderr, "servers:", err)
		return 1
	}

	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	for {
		select {
		case s := <-signals:
			_ = syscall.Kill(-cmd.Process.Pid, s.(syscall.Signal)) // fails when it has just ended
		case err := <-ended:
			var exit *exec.ExitError
			switch {
			case err == nil:
				return 0
			case !errors.As(err, &exit):
				fmt.Fprintln(stderr, "servers:", err)
				return 1
			}

			if status := exit.Sys().(syscall.WaitStatus); status.Signaled() {
				return 128 + int(status.Signal())
			}
			return exit.ExitCode()
		}
	}
}
