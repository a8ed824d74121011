package main

import (
	"context"
	"io"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/credentials"
)

const listClientsUsage = `Usage: oncepay clients list -tenant name [flags]

Shows the clients of a tenant by name, and how many good credentials each has.

Example:
  oncepay clients list -tenant acme
`

func (c *call) listClients(ctx context.Context, args []string) error {
	f := newFlags("clients list", listClientsUsage)
	tenant := f.tenant()
	if _, err := f.parse(c, args); err != nil {
		return err
	}

	check := checks{flags: f}
	check.name("-tenant", *tenant)
	if err := check.err(); err != nil {
		return err
	}

	var clients []credentials.Client
	err := c.look(ctx, func(tx pgx.Tx) error {
		tenantID, err := credentials.FindTenant(ctx, tx, *tenant)
		if err != nil {
			return err
		}
		clients, err = credentials.ListClients(ctx, tx, tenantID)
		return err
	})
	if err != nil {
		return err
	}

	return c.show(f, clients, func(w io.Writer) {
		row(w, "CLIENT", "NAME", "CREDENTIALS", "CREATED")
		for _, k := range clients {
			row(w, k.ID, k.Name, k.Credentials, k.CreatedAt)
		}
	})
}

const createClientUsage = `Usage: oncepay clients create -tenant name [flags] NAME

Creates a client of a tenant: a program that calls the API. Idempotency keys belong to it, not to its credentials. Its name
must be new within the tenant.

Example:
  oncepay clients create -tenant acme shop
`

func (c *call) createClient(ctx context.Context, args []string) error {
	f := newFlags("clients create", createClientUsage)
	tenant := f.tenant()
	found, err := f.parse(c, args, "NAME")
	if err != nil {
		return err
	}

	made := named{Name: found[0]}
	// All mistakes in the arguments are reported together, before the database is asked.
	check := checks{flags: f}
	check.name("-tenant", *tenant)
	check.name("NAME", made.Name)
	if err := check.err(); err != nil {
		return err
	}

	err = c.change(ctx, func(tx pgx.Tx) error {
		tenantID, err := credentials.FindTenant(ctx, tx, *tenant)
		if err != nil {
			return err
		}
		made.ID, err = credentials.CreateClient(ctx, tx, tenantID, made.Name)
		return err
	})
	if err != nil {
		return err
	}

	return c.show(f, made, func(w io.Writer) { row(w, "client", made.ID, made.Name) })
}

func findClient(ctx context.Context, tx pgx.Tx, tenant, name string) (uuid.UUID, error) {
	tenantID, err := credentials.FindTenant(ctx, tx, tenant)
	if err != nil {
		return uuid.Nil, err
	}
	return credentials.FindClient(ctx, tx, tenantID, name)
}
