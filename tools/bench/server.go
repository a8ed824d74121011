package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/embedded"
	"github.com/oncepay/oncepay/migrations"
)

// settings of the server: as safe as a real one, as large as this machine can be expected to carry, and nothing at random times. There is
// no autovacuum, because it would fall on one measurement and not on the next; the tables are insert-only but for balances, which are
// updated in place. There is no checkpoint during a measurement, because there is one right before each.
var settings = map[string]string{
	"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
	"shared_buffers": "1GB", "max_wal_size": "4GB", "checkpoint_timeout": "30min", "autovacuum": "off",
	// Statements are counted in measurements of their own: elsewhere the library is there and does nothing.
	"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "none",
}

// shown are the settings that a reader of the figures wants to know.
var shown = []string{"fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size", "checkpoint_timeout", "autovacuum"}

// server is the Postgres that is measured: one of our own, on which every measurement has a fresh copy of one database, or a given database.
type server struct {
	dir   string // of the programs
	own   *embedded.Postgres
	given string // URL; empty: own

	seed       seed
	neighbour  seed // of a second tenant
	databases  int
	statements bool // they can be counted
}

// seed is what oncepay seed prints.
type seed struct {
	Token    string `json:"token"`
	Accounts []struct {
		ID uuid.UUID `json:"id"`
	} `json:"accounts"`
}

func (s seed) ids() []uuid.UUID {
	ids := make([]uuid.UUID, len(s.Accounts))
	for i, a := range s.Accounts {
		ids[i] = a.ID
	}
	return ids
}

const (
	template = "template_bench"
	tenant   = "bench"
	next     = "bench-neighbour"
	funds    = "1000000000000" // of each account: more than any run moves
)

// open makes the database that is copied, with its accounts, or looks at the given one.
func (s *server) open(ctx context.Context, accounts int) error {
	if s.given != "" {
		if err := s.inspect(ctx); err != nil {
			return err
		}
		return s.fundBoth(ctx, s.given, accounts)
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	url := s.own.URL("postgres", template)
	if err := s.fundBoth(ctx, url, accounts); err != nil {
		return err
	}
	return s.execute(ctx, url, `VACUUM ANALYZE`)
}

// start starts a server with a database that has our schema.
func (s *server) start(ctx context.Context) error {
	options := embedded.PostgresOptions{Settings: settings, Log: slog.New(slog.DiscardHandler)}
	var err error
	s.own, err = embedded.StartPostgres(ctx, options)
	if err != nil && strings.Contains(err.Error(), "pg_stat_statements") { // it comes in a package of its own
		options.Settings = map[string]string{}
		for name, value := range settings {
			if !strings.Contains(name+value, "pg_stat_statements") {
				options.Settings[name] = value
			}
		}
		s.own, err = embedded.StartPostgres(ctx, options)
	} else {
		s.statements = err == nil
	}
	if err != nil {
		return err
	}
	if err := embedded.CreateRoles(ctx, s.admin()); err != nil {
		return err
	}
	if err := s.execute(ctx, s.admin(), `CREATE DATABASE `+template); err != nil {
		return err
	}
	url := s.own.URL("postgres", template)
	if _, err := migrations.Up(ctx, url); err != nil {
		return fmt.Errorf("apply the schema: %w", err)
	}
	if s.statements {
		return s.execute(ctx, url, `CREATE EXTENSION pg_stat_statements`)
	}
	return nil
}

const strangers = `SELECT EXISTS (SELECT FROM payments p JOIN tenants t ON t.id = p.tenant_id WHERE t.name <> ALL ($1))`

// inspect refuses a database that is not ours, or that somebody uses.
func (s *server) inspect(ctx context.Context) error {
	conn, err := connect(ctx, s.given)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := migrations.Check(ctx, conn); err != nil {
		return fmt.Errorf("-database-url: not a database of ours: %w", err)
	}
	var used bool
	if err := conn.QueryRow(ctx, strangers, []string{tenant, next}).Scan(&used); err != nil {
		return fmt.Errorf("-database-url: look for payments: %s", firstLine(err))
	}
	if used {
		return fmt.Errorf("-database-url: it holds payments of other tenants than %q: give the benchmark a database of its own", tenant)
	}
	return nil
}

func (s *server) fundBoth(ctx context.Context, url string, accounts int) (err error) {
	if s.seed, err = s.fund(ctx, url, tenant, accounts); err != nil {
		return err
	}
	s.neighbour, err = s.fund(ctx, url, next, min(accounts, 100))
	return err
}

// fund makes client, credential and accounts the way an operator does.
func (s *server) fund(ctx context.Context, url, tenant string, accounts int) (made seed, err error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.dir, "oncepay"), "seed", "--tenant", tenant, "--client", "load", "--currency", "USD",
		"--accounts", strconv.Itoa(accounts), "--fund", funds, "--json")
	cmd.Env = []string{"DATABASE_URL=" + url}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return made, fmt.Errorf("oncepay seed: %w\n%s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	if err := json.Unmarshal(out, &made); err != nil {
		return made, fmt.Errorf("read what oncepay seed printed: %w", err)
	}
	return made, nil
}

// database is where one session works.
type database struct {
	name  string
	owner string   // URL
	api   []string // URLs for the API, as variables
	drop  bool
}

// fresh copies the template and writes everything to disk, so that each measurement begins with the same data, and as long after a checkpoint.
// A given database is taken as it is: it grows from one measurement to the next.
func (s *server) fresh(ctx context.Context) (database, error) {
	if s.given != "" {
		return database{owner: s.given, api: []string{"DATABASE_URL=" + s.given, "ROW_LEVEL_SECURITY=off"}}, nil
	}
	s.databases++
	name := fmt.Sprintf("bench_%d", s.databases)
	if err := s.execute(ctx, s.admin(), `CREATE DATABASE `+name+` TEMPLATE `+template, `CHECKPOINT`); err != nil {
		return database{}, err
	}
	d := s.named(name)
	d.drop = true
	return d, nil
}

func (s *server) named(name string) database {
	return database{name: name, owner: s.own.URL("postgres", name), api: []string{
		"DATABASE_URL=" + s.own.URL("api_write", name), "DATABASE_READ_URL=" + s.own.URL("api_read", name)}}
}

func (s *server) release(ctx context.Context, d database) error {
	if !d.drop {
		return nil
	}
	return s.execute(ctx, s.admin(), `DROP DATABASE `+d.name+` WITH (FORCE)`)
}

// time is the CPU time of all its processes; 0 when it is not ours to see.
func (s *server) time() (time.Duration, error) {
	if s.own == nil {
		return 0, nil
	}
	return processTime(s.own.Pid(), true)
}

func (s *server) admin() string { return s.own.URL("postgres", "postgres") }

func (s *server) execute(ctx context.Context, url string, statements ...string) error {
	conn, err := connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%.60s: %w", strings.Join(strings.Fields(sql), " "), err)
		}
	}
	return nil
}

// machine is a line about what is measured on.
func (s *server) machine(ctx context.Context) (string, error) {
	postgres, err := s.describe(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d cores, %s/%s, %s, %s; load average before: %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), postgres, loadAverage()), nil
}

// describe is a line about the server.
func (s *server) describe(ctx context.Context) (string, error) {
	url := s.given
	if url == "" {
		url = s.own.URL("postgres", template)
	}
	conn, err := connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, `SELECT name || '=' || current_setting(name) FROM unnest($1::text[]) name`, append([]string{"server_version"}, shown...))
	if err != nil {
		return "", fmt.Errorf("read settings: %w", err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return "", fmt.Errorf("read settings: %w", err)
	}
	version, _, _ := strings.Cut(strings.TrimPrefix(lines[0], "server_version="), " ")
	return "Postgres " + version + " with " + strings.Join(lines[1:], " "), nil
}

func (s *server) close() error {
	if s.own == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.own.Stop(ctx)
}

// connect fails within some seconds, on one line that shows no password.
func connect(ctx context.Context, database string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(database)
	if err != nil {
		return nil, errors.New("connect to Postgres: the driver cannot read the URL")
	}
	cfg.ConnectTimeout = 3 * time.Second
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to Postgres: %s", firstLine(err))
	}
	return conn, nil
}

// firstLine: the driver lists what it tried, on lines of their own.
func firstLine(err error) string {
	parts := strings.Split(err.Error(), "\n\t")
	return strings.TrimSpace(parts[0] + " " + strings.Join(slices.Compact(parts[1:]), "; "))
}
