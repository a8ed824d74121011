// Command fakepsp is a payment service provider that moves no money, for development, tests and
// demonstrations. It keeps books that survive kill -9, and misbehaves as it is told.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/oncepay/oncepay/internal/fakepsp"
	"github.com/oncepay/oncepay/internal/program"
)

func main() {
	os.Exit(program.Main(newProgram(), os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}

const about = `fakepsp is a payment service provider that moves no money. Its books are on disk
before it answers. It loses replies, fails, is slow and forgets as it is told: by
flags or, while it runs, by PUT /admin/faults, which needs no key. Do not expose it.`

const variables = `  PSP_API_KEY         required  the API key of its callers
  PSP_WEBHOOK_SECRET  unset     signs webhooks: whsec_ and base64; required with --webhook-url
  FAKEPSP_…           unset     any flag, such as FAKEPSP_LOSE_REPLY=0.05; the flag has precedence
`

const examples = `  export PSP_API_KEY=psp_secret
  fakepsp --dir /tmp/fakepsp
  fakepsp --dir /tmp/fakepsp --latency 50ms --lose-reply 0.05 --error-before 0.05 --slow 0.01
  fakepsp --dir /tmp/fakepsp --webhook-url http://localhost:8080/webhooks/psp --webhook-double 1
  curl -X PUT -d '{"down":"unavailable"}' localhost:8090/admin/faults
  curl -X PUT -d '{}' localhost:8090/admin/faults`

func newProgram() program.Program {
	f := &flags{}
	return program.Program{
		Name:    "fakepsp",
		About:   about,
		Usage:   variables,
		Example: examples,
		Flags:   f.add,
		Run: func(ctx context.Context, getenv func(string) string, stderr io.Writer) error {
			if err := f.read(getenv); err != nil {
				return err
			}
			return run(ctx, f, stderr)
		},
		Probe: func(getenv func(string) string) (string, error) {
			err := f.fromEnv(getenv)
			return f.addr, err
		},
	}
}

// stopTimeout is what calls in hand get to end: their pauses are cut short.
const stopTimeout = 5 * time.Second

func run(ctx context.Context, f *flags, stderr io.Writer) (err error) {
	log := slog.New(slog.NewJSONHandler(stderr, nil))

	f.options.Log = log
	psp, err := fakepsp.Open(f.dir, f.options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, psp.Close()) }()

	listener, err := net.Listen("tcp", f.addr)
	if err != nil {
		return fmt.Errorf("open the listener (--addr): %w", err)
	}

	server := &http.Server{Handler: psp, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }() // ends with the server

	log.InfoContext(ctx, "fakepsp started", "http_addr", listener.Addr().String(), "dir", f.dir)
	defer log.InfoContext(ctx, "fakepsp stopped")

	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-psp.Failed(): // Close says why
	case <-ctx.Done():
	}

	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	psp.Drain()
	if server.Shutdown(grace) != nil {
		server.Close()
	}
	return nil
}
