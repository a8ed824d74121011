package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/procfs"

	"github.com/oncepay/oncepay/internal/embedded"
	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/tools/rig"
)

// settings of the server: as safe as a real one, and as large as this machine can be expected to
// carry. There is no checkpoint during a measurement, because there is one right before each: what
// checkpoints cost is measured by `bench hour`.
var settings = map[string]string{
	"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
	"shared_buffers": "1GB", "max_wal_size": "4GB", "checkpoint_timeout": "30min",
}

// template is the database that each measurement has a copy of.
const template = "template_bench"

// bench is one run: programs, a Postgres, and what was measured.
type bench struct {
	options
	rig.Progress
	dir      string // programs and logs
	postgres *embedded.Postgres
	admin    *pgx.Conn
	copies   int
	figures  figures
	machine  string // a line on what it runs on
}

// start builds programs and starts Postgres. The caller calls stop, after an error too.
func start(ctx context.Context, o options, stdout io.Writer, programs ...string) (*bench, error) {
	return startWith(ctx, o, settings, stdout, programs...)
}

func startWith(
	ctx context.Context, o options, settings map[string]string, stdout io.Writer, programs ...string,
) (b *bench, err error) {
	b = &bench{options: o, Progress: rig.NewProgress(stdout), figures: figures{}}
	if b.dir, err = rig.Dir("bench"); err != nil {
		return b, err
	}

	b.Say("building %s", strings.Join(programs, " and "))
	if err := process.Build(ctx, b.dir, nil, programs...); err != nil {
		return b, err
	}

	b.Say("starting Postgres")
	b.postgres, err = rig.Postgres(ctx, embedded.PostgresOptions{Settings: settings}, template)
	if err != nil {
		return b, err
	}

	// One session for all readings: a new one for each would be part of what Postgres spends.
	if b.admin, err = rig.Connect(ctx, b.owner("postgres")); err != nil {
		return b, err
	}

	with := strings.Trim(strings.TrimPrefix(fmt.Sprint(settings), "map"), "[]")
	b.machine = fmt.Sprintf("%d cores, %s/%s, %s, Postgres %s (%s) with %s; load average before: %s",
		runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), b.postgres.Version(),
		b.postgres.Origin(), with, loadAverage())
	return b, nil
}

// stop stops Postgres and deletes everything.
func (b *bench) stop() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	if b.admin != nil {
		_ = b.admin.Close(ctx)
	}
	if b.postgres != nil {
		err = b.postgres.Stop(ctx)
	}
	return errors.Join(err, os.RemoveAll(b.dir))
}

// owner is the URL of a database for its owner.
func (b *bench) owner(database string) string { return b.postgres.URL("postgres", database) }

// fresh copies the template and writes everything to disk, so that each measurement begins with the
// same data, and as long after a checkpoint.
func (b *bench) fresh(ctx context.Context) (database string, drop func(), err error) {
	b.copies++
	database = fmt.Sprintf("bench_%d", b.copies)
	err = rig.Execute(ctx, b.owner("postgres"),
		`CREATE DATABASE `+database+` TEMPLATE `+template, `CHECKPOINT`)

	// Otherwise it goes with the server.
	drop = func() { _, _ = b.admin.Exec(ctx, `DROP DATABASE `+database+` WITH (FORCE)`) }
	return database, drop, err
}

// loadAverage tells whether the machine had something else to do.
func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg") // for show
	return strings.Join(strings.Fields(string(text) + " ? ? ?")[:3], " ")
}

// cost is what a program, Postgres and this process took.
type cost struct {
	seconds, program, postgres, own float64 // seconds; the latter of processor time
	wal                             float64 // bytes
	peak                            float64 // memory of the program so far, MiB
	before, after                   map[string]*dto.MetricFamily
}

const walWritten = `SELECT (pg_current_wal_insert_lsn() - '0/0')::float8`

// cost measures what is spent while do runs. Without a program it is Postgres' share that counts.
func (b *bench) cost(ctx context.Context, p *process.Process, do func() error) (c cost, err error) {
	before, err := b.spent(ctx, p)
	if err == nil {
		err = do()
	}
	if err != nil {
		return c, err
	}

	c, err = b.spent(ctx, p)
	c.before = before.after
	c.seconds -= before.seconds
	c.program -= before.program
	c.postgres -= before.postgres
	c.own -= before.own
	c.wal -= before.wal
	return c, err
}

// spent reads the counters.
func (b *bench) spent(ctx context.Context, p *process.Process) (c cost, err error) {
	// Only the API serves HTTP.
	if p != nil && p.Addr != "" {
		if c.after, err = rig.Metrics(ctx, p.Admin); err != nil {
			return c, err
		}
	}
	if err := b.admin.QueryRow(ctx, walWritten).Scan(&c.wal); err != nil {
		return c, fmt.Errorf("read the position of the log: %w", err)
	}

	if err := c.processes(p, b.postgres.Pid()); err != nil {
		return c, err
	}

	// It has ended, or /proc is of another kind.
	if p != nil && c.peak == 0 {
		return c, fmt.Errorf("%s is not among the processes", p.Name)
	}

	c.seconds = float64(time.Now().UnixMicro()) / 1e6
	return c, nil
}

// processes sets the time of each. That of Postgres is its first process, what that has reaped, and
// the sessions that run.
func (c *cost) processes(p *process.Process, postgres int) error {
	first, err := procfs.NewProc(postgres)
	if err != nil {
		return fmt.Errorf("find Postgres: %w", err)
	}

	for {
		before, err := first.Stat()
		if err != nil {
			return fmt.Errorf("read the time of Postgres: %w", err)
		}
		all, err := procfs.AllProcs()
		if err != nil {
			return fmt.Errorf("list processes: %w", err)
		}

		var sessions float64
		for _, proc := range all {
			s, err := proc.Stat()
			if err != nil {
				continue // it has just ended
			}

			switch {
			case p != nil && proc.PID == p.Pid():
				status, _ := proc.NewStatus()
				c.program, c.peak = s.CPUTime(), float64(status.VmHWM)/(1<<20)
			case proc.PID == os.Getpid():
				c.own = s.CPUTime()
			case s.PPID == postgres:
				sessions += s.CPUTime()
			}
		}

		after, err := first.Stat()
		if err != nil {
			return fmt.Errorf("read the time of Postgres: %w", err)
		}

		// A session that was reaped meanwhile is in neither sum, or in both: look again.
		if after.CUTime == before.CUTime && after.CSTime == before.CSTime {
			const ticks = 100 // of Linux, in a second
			c.postgres = sessions + after.CPUTime() + float64(after.CUTime+after.CSTime)/ticks
			return nil
		}
	}
}

// histogram is how many values came between two looks at the same process.
type histogram struct{ from, to *dto.Histogram }

func (c cost) histogram(name string) (histogram, error) {
	var ends []*dto.Histogram
	for _, metrics := range []map[string]*dto.MetricFamily{c.before, c.after} {
		family := metrics[name].GetMetric()
		if len(family) != 1 || len(family[0].GetHistogram().GetBucket()) == 0 {
			return histogram{}, fmt.Errorf("no histogram %s is shown", name)
		}

		ends = append(ends, family[0].GetHistogram())
	}
	return histogram{ends[0], ends[1]}, nil
}

func (h histogram) count() float64 { return float64(h.to.GetSampleCount() - h.from.GetSampleCount()) }

func (h histogram) mean() float64 {
	return (h.to.GetSampleSum() - h.from.GetSampleSum()) / h.count()
}

// atMost returns the least bound of a bucket that the share q of the values does not exceed: the
// true quantile is below. NaN: there are no values.
func (h histogram) atMost(q float64) float64 {
	for i, bucket := range h.to.GetBucket() {
		n := float64(bucket.GetCumulativeCount() - h.from.GetBucket()[i].GetCumulativeCount())
		if n > 0 && n >= q*h.count() {
			return bucket.GetUpperBound()
		}
	}

	return math.NaN()
}
