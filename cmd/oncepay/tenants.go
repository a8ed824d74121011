package main

import (
	"context"
	"io"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/credentials"
)

const listTenantsUsage = `Usage: oncepay tenants list [flags]

Shows all tenants by name, and how many clients each has.

Examples:
  oncepay tenants list
  oncepay tenants list -json
`

func (c *call) listTenants(ctx context.Context, args []string) error {
	f := newFlags("tenants list", listTenantsUsage)
	if _, err := f.parse(c, args); err != nil {
		return err
	}

	var tenants []credentials.Tenant
	err := c.look(ctx, func(tx pgx.Tx) (err error) {
		tenants, err = credentials.ListTenants(ctx, tx)
		return err
	})
	if err != nil {
		return err
	}

	return c.show(f, tenants, func(w io.Writer) {
		row(w, "TENANT", "NAME", "CLIENTS", "CREATED")
		for _, t := range tenants {
			row(w, t.ID, t.Name, t.Clients, t.CreatedAt)
		}
	})
}

const createTenantUsage = `Usage: oncepay tenants create [flags] NAME

Creates a tenant: who owns accounts and money. Its name must be new.

Examples:
  oncepay tenants create acme
  oncepay tenants create "Acme Ltd" -json
`

// named is a new tenant or client.
type named struct {
	ID   uuid.UUID `json:"id"`
	Name string    `json:"name"`
}

func (c *call) createTenant(ctx context.Context, args []string) error {
	f := newFlags("tenants create", createTenantUsage)
	found, err := f.parse(c, args, "NAME")
	if err != nil {
		return err
	}

	made := named{Name: found[0]}
	check := checks{flags: f}
	check.name("NAME", made.Name)
	if err := check.err(); err != nil {
		return err
	}

	err = c.change(ctx, func(tx pgx.Tx) (err error) {
		made.ID, err = credentials.CreateTenant(ctx, tx, made.Name)
		return err
	})
	if err != nil {
		return err
	}

	return c.show(f, made, func(w io.Writer) { row(w, "tenant", made.ID, made.Name) })
}
