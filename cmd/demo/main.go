// Command demo runs the whole service under load, kills its programs while they work, and then
// counts what was lost, doubled, reordered or out of balance. It counts in the tables and the
// topics and takes no program's word for it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/oncepay/oncepay/cmd/demo/local"
	"github.com/oncepay/oncepay/cmd/demo/page"
	"github.com/oncepay/oncepay/cmd/demo/stage"
	"github.com/oncepay/oncepay/internal/fakepsp"
	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/statements"
	"github.com/oncepay/oncepay/internal/traffic"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, done, err := parse(args, stdout)
	if done {
		return 0
	}

	if err == nil {
		soft, hard, first, stop := interrupts(ctx)
		defer stop()

		d := &demo{options: o, out: stdout, unread: first, begun: time.Now()}
		err = d.run(soft, hard)

		if o.check {
			d.verdict.OK, d.verdict.Kills = err == nil, len(d.kills)
			d.verdict.Seconds = time.Since(d.begun).Round(100 * time.Millisecond).Seconds()
			// Deferred, so that it is the last line whatever happens.
			defer func() { _ = json.NewEncoder(stdout).Encode(d.verdict) }()
		}
	}

	if err != nil {
		fmt.Fprintln(stderr, "demo: "+strings.ReplaceAll(err.Error(), "\n", "\ndemo: "))
		return 1
	}
	return 0
}

// interrupts returns a context that ends with the first Ctrl-C, or when first is called, and one that
// ends with the second.
func interrupts(ctx context.Context) (soft, hard context.Context, first, stop func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// If the reader of our output goes away, the write must fail. The signal comes for connections,
	// too, and Kafka in this process has those of programs that are killed.
	signal.Ignore(syscall.SIGPIPE)

	soft, first = context.WithCancel(ctx)
	hard, second := context.WithCancel(context.WithoutCancel(ctx))

	go func() {
		for range signals {
			if soft.Err() != nil {
				second()
			}
			first()
		}
	}()

	return soft, hard, first, func() { signal.Stop(signals); close(signals); first(); second() }
}

// demo is one run.
type demo struct {
	options
	begun time.Time

	mu     sync.Mutex
	out    io.Writer
	unread func() // called when out has no reader any more

	stack   stack
	shops   [2]traffic.Seed  // the clients that pay
	visitor traffic.Seed     // its credential is in the curl lines
	before  invariant.Report // only its counts, not what was wrong
	kills   []kill
	counted bool
	psp     fakepsp.Totals // as they were before
	lost    int64          // replies of the PSP, since then
	hooks   *receiver      // nil in Compose, whose worker does not reach this machine
	got     webhookCount
	verdict verdict
	page    *page.Server // nil: there is none
	stage   *stage.Stage // nil without a page
}

// run is the demo from top to bottom. It stops in good order when soft ends, at once when hard
// does.
func (d *demo) run(soft, hard context.Context) (err error) {
	if d.options.page != "" {
		if d.page, err = page.Listen(d.options.page, d.begun); err != nil {
			return err
		}
		defer d.page.Close()
		d.print("See it and break it: " + d.page.URL() + "\n")
		if d.browser {
			d.page.Open()
		}
	}

	dir, err := os.MkdirTemp("", "oncepay-demo-")
	if err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	// Keep the logs of a failure, but not those of an interruption before the count.
	defer func() {
		if wrong := err != nil && (soft.Err() == nil || d.counted); wrong && keepLogs(dir) {
			err = fmt.Errorf("%w\nlogs and history are kept in %s", err, dir)
			return
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()

	if d.compose {
		d.stack = &compose{say: d.say}
	} else {
		d.stack = &local.Service{Say: d.say, Dir: dir, Proxied: d.page != nil}
	}

	defer d.stack.Close()
	if err := d.stack.Open(soft); err != nil {
		return err
	}

	if err := d.prepare(soft); err != nil {
		return err
	}

	view, err := traffic.OpenView(soft, d.stack.Owner(), d.stack.Brokers(), statements.Consumer)
	if err != nil {
		return err
	}
	defer view.Close()

	if !d.compose {
		if d.hooks, err = newReceiver(); err != nil {
			return err
		}
		defer d.hooks.close()
		if err := d.hooks.subscribe(soft, d.stack.URL(), d.shops[0]); err != nil {
			return err
		}
		d.say("webhooks of all payments go to http://%s", d.hooks.address)
	}

	load, err := traffic.New(dir, d.stack.URL(), d.shops[:])
	if err != nil {
		return err
	}
	defer load.History.Close()
	load.Cards = true

	if d.psp, err = d.pspTotals(soft); err != nil {
		return err
	}
	if err := d.spoil(soft); err != nil {
		return err
	}

	// Servers in Compose may hold the events of earlier runs.
	if d.compose {
		if err := d.lookBefore(soft, view); err != nil {
			return err
		}
	}

	if d.page != nil {
		if err := d.openStage(soft, load); err != nil {
			return err
		}
		defer func() {
			d.page.SetStage(nil)
			d.stage.Close()
		}()
	}

	if err := d.show(soft, hard, load, view); err != nil {
		return err
	}
	return d.count(hard, load, view)
}

// openStage lets the page show what runs, and act on it.
func (d *demo) openStage(ctx context.Context, l *traffic.Load) (err error) {
	d.stage, err = stage.New(ctx, stage.Options{
		Service: d.stack.(*local.Service), Timeline: d.page.Timeline, Begun: d.begun,
		Visitor: d.visitor, InFlight: l.InFlight, Received: d.hooks.place,
	})
	if err != nil {
		return err
	}
	d.page.SetStage(d.stage.Page())
	return nil
}

// keepLogs leaves only logs and history in dir and reports whether there are any.
func keepLogs(dir string) bool {
	files, _ := os.ReadDir(dir) // an unreadable directory has nothing to keep

	kept := false
	for _, f := range files {
		if ext := filepath.Ext(f.Name()); ext == ".log" || ext == ".jsonl" {
			kept = true
			continue
		}
		_ = os.RemoveAll(filepath.Join(dir, f.Name())) // a program: it can be built again
	}

	return kept
}

// say prints a line with the time. Its text fits into the 73 columns that are left of 80.
func (d *demo) say(format string, args ...any) {
	d.print(fmt.Sprintf("%4.0fs  %s\n", time.Since(d.begun).Seconds(), fmt.Sprintf(format, args...)))
}

func (d *demo) print(text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := fmt.Fprint(d.out, text); err != nil {
		d.unread()
	}
}
