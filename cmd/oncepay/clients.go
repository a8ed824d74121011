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

func (o operator) clients() *cobra.Command {
	c := &cobra.Command{
		Use:   "clients",
		Short: "Show and create clients, the programs that call the API",
		Example: "  oncepay clients list --tenant acme\n" +
			"  oncepay clients create --tenant acme shop",
		GroupID: asOperator,
	}
	c.AddCommand(o.listClients(), o.createClient())
	return c
}

func (o operator) listClients() *cobra.Command {
	list := &cobra.Command{
		Use:     "list",
		Short:   "Show the clients of a tenant by name, and how many good credentials each has",
		Example: "  oncepay clients list --tenant acme",
	}

	var tenant string
	tenantFlag(list, &tenant)

	list.RunE = func(c *cobra.Command, _ []string) error {
		clients, err := look(c.Context(), o,
			func(ctx context.Context, tx pgx.Tx) ([]credentials.Client, error) {
				tenantID, err := credentials.FindTenant(ctx, tx, tenant)
				if err != nil {
					return nil, err
				}
				return credentials.ListClients(ctx, tx, tenantID)
			})
		if err != nil {
			return err
		}

		return program.Show(c, clients, func(w io.Writer) {
			program.Row(w, "CLIENT", "NAME", "CREDENTIALS", "CREATED")
			for _, k := range clients {
				program.Row(w, k.ID, k.Name, k.Credentials, k.CreatedAt)
			}
		})
	}
	return list
}

func (o operator) createClient() *cobra.Command {
	create := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a client; its name must be new within the tenant",
		Long: `Creates a client of a tenant: a program that calls the API. Idempotency keys belong to it, not
to its credentials. Its name must be new within the tenant.`,
		Example: "  oncepay clients create --tenant acme shop",
	}

	var tenant string
	tenantFlag(create, &tenant)

	create.RunE = func(c *cobra.Command, args []string) error {
		name, err := argument("NAME", args[0], parseName)
		if err != nil {
			return err
		}

		made, err := change(c.Context(), o,
			func(ctx context.Context, tx pgx.Tx) (made named, err error) {
				tenantID, err := credentials.FindTenant(ctx, tx, tenant)
				if err != nil {
					return made, err
				}
				id, err := credentials.CreateClient(ctx, tx, tenantID, name)
				return named{id, name}, err
			})
		if err != nil {
			return err
		}

		return program.Show(c, made, func(w io.Writer) {
			program.Row(w, "client", made.ID, made.Name)
		})
	}
	return create
}

func findClient(ctx context.Context, tx pgx.Tx, tenant, name string) (uuid.UUID, error) {
	tenantID, err := credentials.FindTenant(ctx, tx, tenant)
	if err != nil {
		return uuid.Nil, err
	}
	return credentials.FindClient(ctx, tx, tenantID, name)
}
