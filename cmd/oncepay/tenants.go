package main

import (
	"context"
	"io"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/program"
)

func (o operator) listTenants() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "Show all tenants by name, how many clients each has, and where it moves",
		Example: "  oncepay tenants list\n  oncepay tenants list --json",
		RunE: runs(o, looks, credentials.ListTenants, func(w io.Writer, all []credentials.Tenant) {
			program.Row(w, "TENANT", "NAME", "CLIENTS", "CREATED", "MOVE")
			for _, t := range all {
				program.Row(w, t.ID, t.Name, t.Clients, t.CreatedAt, t.Move)
			}
		}),
	}
}

// named is a new tenant or client.
type named struct {
	ID   uuid.UUID `json:"id"`
	Name string    `json:"name"`
}

func (o operator) createTenant() *cobra.Command {
	c := &cobra.Command{
		Use:     "create NAME",
		Short:   "Create a tenant; its name must be new",
		Example: "  oncepay tenants create acme\n  oncepay tenants create \"Acme Ltd\" --json",
	}

	var name string
	program.Argument(c, &name, parseName)

	c.RunE = runs(o, changes, func(ctx context.Context, tx pgx.Tx) (named, error) {
		id, err := credentials.CreateTenant(ctx, tx, name)
		return named{id, name}, err
	}, func(w io.Writer, made named) {
		program.Row(w, "tenant", made.ID, made.Name)
	})
	return c
}
