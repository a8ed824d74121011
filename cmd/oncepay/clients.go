package main

import (
	"context"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/program"
)

func (o operator) listClients() *cobra.Command {
	c := &cobra.Command{
		Use:     "list",
		Short:   "Show the clients of a tenant by name, and how many good credentials each has",
		Example: "  oncepay clients list --tenant acme",
	}

	var tenant string
	tenantFlag(c, &tenant)

	c.RunE = runs(o, looks, func(ctx context.Context, tx pgx.Tx) ([]credentials.Client, error) {
		tenantID, err := credentials.FindTenant(ctx, tx, tenant)
		if err != nil {
			return nil, err
		}
		return credentials.ListClients(ctx, tx, tenantID)
	}, func(w io.Writer, all []credentials.Client) {
		program.Row(w, "CLIENT", "NAME", "CREDENTIALS", "CREATED")
		for _, k := range all {
			program.Row(w, k.ID, k.Name, k.Credentials, k.CreatedAt)
		}
	})
	return c
}

func (o operator) createClient() *cobra.Command {
	c := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a client; its name must be new within the tenant",
		Long: `Creates a client of a tenant: a program that calls the API. Idempotency keys belong to it, not
to its credentials. Its name must be new within the tenant.`,
		Example: "  oncepay clients create --tenant acme shop",
	}

	var tenant, name string
	tenantFlag(c, &tenant)
	program.Argument(c, &name, parseName)

	c.RunE = runs(o, changes, func(ctx context.Context, tx pgx.Tx) (made named, err error) {
		tenantID, err := credentials.FindTenant(ctx, tx, tenant)
		if err != nil {
			return made, err
		}
		id, err := credentials.CreateClient(ctx, tx, tenantID, name)
		return named{id, name}, err
	}, func(w io.Writer, made named) {
		program.Row(w, "client", made.ID, made.Name)
	})
	return c
}
