package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/embedded"
)

// seed is what oncepay seed prints.
type seed struct {
	Token    string `json:"token"`
	Accounts []struct {
		ID uuid.UUID `json:"id"`
	} `json:"accounts"`
}

// prepare makes database, roles, schema, and a client with two accounts of 10,000.00 USD each.
func (d *demo) prepare(ctx context.Context, maintenance string) error {
	if err := embedded.CreateRoles(ctx, maintenance); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, maintenance)
	if err != nil {
		return fmt.Errorf("connect to Postgres: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `CREATE DATABASE `+pgx.Identifier{database}.Sanitize()); err != nil {
		return fmt.Errorf("create database: %w", err)
	}
	if _, err := d.command(ctx, "migrate", "up"); err != nil {
		return err
	}
	out, err := d.command(ctx, "oncepay", "seed", "-tenant", "demo", "-client", "shop", "-currency", "USD", "-accounts", "2", "-fund", "1000000", "-json")
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, &d.seed); err != nil || len(d.seed.Accounts) != 2 {
		return fmt.Errorf("read what oncepay seed printed: %w", err)
	}
	d.say("schema is up to date; a client and two accounts with 10,000.00 USD each are there")
	return nil
}

func (d *demo) command(ctx context.Context, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(d.dir, program), args...)
	cmd.Env = []string{"DATABASE_URL=" + d.url("postgres")}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", program, args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}
