package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/fakepsp"
	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/psp"
	"github.com/oncepay/oncepay/internal/traffic"
	"github.com/oncepay/oncepay/tools/rig"
)

// cards is the benchmark from top to bottom.
func cards(ctx context.Context, o options, stdout io.Writer) (err error) {
	started, err := start(ctx, o, stdout, "api", "oncepay", "worker", "fakepsp")
	defer func() { err = errors.Join(err, started.stop()) }()
	if err != nil {
		return err
	}

	b := &intakeBench{bench: started}
	b.Say("%s", b.machine)
	if b.shop, err = b.seed(ctx, tenant, b.accounts, "--cards"); err != nil {
		return err
	}
	for round := range b.rounds {
		database, drop, err := b.fresh(ctx)
		if err != nil {
			return err
		}
		err = b.session(ctx, scenario{group: true}, database, func(s *session) error {
			return s.charge(ctx, database, round)
		})
		drop()
		if err != nil {
			return fmt.Errorf("round %d: %w", round+1, err)
		}
	}

	members := map[string]any{"rounds": b.rounds, "charges": b.charges, "rate": b.rate}
	fmt.Fprintf(b, "\n%s, after: %s\n%d connections, %d charges, a call takes %s, payments at %d/s, %d rounds of %d s %s\n",
		b.machine, loadAverage(), b.connections, b.charges, b.latency, b.rate, b.rounds, b.seconds,
		strings.Join(b.workerVariables, " "))
	b.figures.show(b, pspTable, "", members)
	writeJSON(b, members)
	return nil
}

// provided is a session with a PSP and the worker that calls it.
type provided struct {
	*session
	psp, worker *process.Process
	dir         string    // the PSP's books
	db          *pgx.Conn // as the owner
}

// charge is a round: all measurements on one database, whose books are read at the end.
func (s *session) charge(ctx context.Context, database string, round int) (err error) {
	p := &provided{session: s, dir: filepath.Join(s.bench.dir, "books")}
	defer p.stop(ctx)
	if err := p.start(ctx, database); err != nil {
		return err
	}

	if err := p.closedLoop(ctx); err != nil {
		return fmt.Errorf("charges: %w", err)
	}
	if err := p.steady(ctx); err != nil {
		return fmt.Errorf("steady: %w", err)
	}

	// Who is first has the smaller tables.
	for n := range pspTurns {
		if err := p.turn(ctx, pspTurns[(n+round)%len(pspTurns)]); err != nil {
			return err
		}
	}

	s.charged, err = p.books(ctx)
	return err
}

const pspKey = "psp_bench"

func (p *provided) start(ctx context.Context, database string) (err error) {
	if p.db, err = rig.Connect(ctx, p.owner(database)); err != nil {
		return err
	}

	key := "PSP_API_KEY=" + pspKey
	p.psp, err = process.Start(ctx, p.bench.dir, "fakepsp", key, "FAKEPSP_ADDR=127.0.0.1:0",
		"FAKEPSP_DIR="+p.dir, "FAKEPSP_LATENCY="+p.latency.String())
	if err != nil {
		return err
	}

	p.worker, err = process.Start(ctx, p.bench.dir, "worker", append([]string{
		"DATABASE_URL=" + p.postgres.URL("worker", database), "WORKER_PARTS=psp",
		"PSP_URL=http://" + p.psp.Addr, key,
	}, p.workerVariables...)...)
	return err
}

// stop ends the worker before the PSP that it calls.
func (p *provided) stop(ctx context.Context) {
	for _, program := range []*process.Process{p.worker, p.psp} {
		if program != nil {
			program.Stop()
			_ = os.Remove(filepath.Join(p.bench.dir, program.Name+".log"))
		}
	}
	if p.db != nil {
		_ = p.db.Close(context.WithoutCancel(ctx))
	}
	_ = os.RemoveAll(p.dir)
}

const (
	countUnsettled = `SELECT count(*) FROM psp_operations WHERE state IN ('pending', 'unknown')`

	// settleMax is more than a probe of the breaker and the longest pause after it.
	settleMax = 2 * time.Minute
)

func (p *provided) unsettled(ctx context.Context) (n int, err error) {
	if err := p.db.QueryRow(ctx, countUnsettled).Scan(&n); err != nil {
		return 0, fmt.Errorf("count operations: %w", err)
	}
	return n, nil
}

// settle waits until every card payment has ended.
func (p *provided) settle(ctx context.Context) error {
	return rig.Until(ctx, settleMax, "every card payment has ended", func(ctx context.Context) bool {
		n, err := p.unsettled(ctx)
		return err == nil && n == 0
	})
}

// faults replaces those of the PSP. Down is as of fakepsp.Faults.
func (p *provided) faults(ctx context.Context, down string) error {
	f := fakepsp.Faults{Latency: fakepsp.Duration(p.latency), Down: down}
	return fakepsp.Ask(ctx, http.MethodPut, "http://"+p.psp.Addr, "/admin/faults", f, &f)
}

// books are those of the PSP.
func (p *provided) books(ctx context.Context) ([]invariant.PSPEntry, error) {
	return traffic.ReadBooks(ctx, psp.NewClient("http://"+p.psp.Addr, pspKey, 1))
}
