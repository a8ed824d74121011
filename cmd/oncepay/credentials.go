package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/program"
)

func (o operator) credentials() *cobra.Command {
	c := &cobra.Command{
		Use:   "credentials",
		Short: "Show, create and revoke the credentials of a client",
		Long: `Shows, creates and revokes the credentials of a client. To rotate one: create a new one, move
the client over, then revoke the old one.`,
		Example: "  oncepay credentials list --tenant acme --client shop\n" +
			"  oncepay credentials revoke 4fT0aP9xKq2LmZ7c",
		GroupID: asOperator,
	}
	c.AddCommand(o.listCredentials(), o.createCredential(), o.revokeCredential())
	return c
}

func (o operator) listCredentials() *cobra.Command {
	list := &cobra.Command{
		Use:     "list",
		Short:   "Show the credentials of a client, the oldest first; their secrets are stored nowhere",
		Example: "  oncepay credentials list --tenant acme --client shop",
	}

	var tenant, client string
	tenantFlag(list, &tenant)
	clientFlag(list, &client)

	list.RunE = func(c *cobra.Command, _ []string) error {
		all, err := look(c.Context(), o,
			func(ctx context.Context, tx pgx.Tx) ([]credentials.Credential, error) {
				clientID, err := findClient(ctx, tx, tenant, client)
				if err != nil {
					return nil, err
				}
				return credentials.List(ctx, tx, clientID)
			})
		if err != nil {
			return err
		}

		return program.Show(c, all, func(w io.Writer) {
			program.Row(w, "CREDENTIAL", "CREATED", "REVOKED", "SCOPES")
			for _, k := range all {
				program.Row(w, k.ID, k.CreatedAt, k.RevokedAt, strings.Join(k.Scopes, ","))
			}
		})
	}
	return list
}

// credential is a new one.
type credential struct {
	ID       string    `json:"id"`
	Token    string    `json:"token"` // revealed, on purpose
	ClientID uuid.UUID `json:"client_id"`
	Scopes   []string  `json:"scopes"`
}

func (o operator) createCredential() *cobra.Command {
	create := &cobra.Command{
		Use:   "create",
		Short: "Create a credential of a client; its token is shown this once and stored nowhere",
		Example: "  oncepay credentials create --tenant acme --client shop\n" +
			"  oncepay credentials create --tenant acme --client shop --scopes accounts:fund --json",
	}

	var tenant, client string
	tenantFlag(create, &tenant)
	clientFlag(create, &client)
	var scopes []string
	scopesFlag(create, &scopes)

	create.RunE = func(c *cobra.Command, _ []string) error {
		made, err := change(c.Context(), o,
			func(ctx context.Context, tx pgx.Tx) (made credential, err error) {
				clientID, err := findClient(ctx, tx, tenant, client)
				if err != nil {
					return made, err
				}
				token, err := credentials.Create(ctx, tx, clientID, scopes)
				return credential{token.ID(), token.Reveal(), clientID, scopes}, err
			})
		if err != nil {
			return err
		}

		return program.Show(c, made, func(w io.Writer) {
			program.Row(w, "credential", made.ID, strings.Join(made.Scopes, ","))
			fmt.Fprintf(w, "\nThe token, shown this once:\n%s\n", made.Token)
		})
	}
	return create
}

func (o operator) revokeCredential() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke CREDENTIAL",
		Short: "End a credential for good: every API process refuses it within 30 seconds",
		Long: `Ends a credential for good: every API process refuses it within 30 seconds. CREDENTIAL is its
id, as credentials list and the logs show it, or a whole token that was found where it does not
belong.`,
		Example: "  oncepay credentials revoke 4fT0aP9xKq2LmZ7c",
		RunE: func(c *cobra.Command, args []string) error {
			id := args[0]
			if token, whole := credentials.Parse(id); whole {
				id = token.ID()
			}

			revoked, err := change(c.Context(), o,
				func(ctx context.Context, tx pgx.Tx) (map[string]string, error) {
					return map[string]string{"id": id}, credentials.Revoke(ctx, tx, id)
				})
			if err != nil {
				return err
			}

			return program.Show(c, revoked, func(w io.Writer) {
				program.Row(w, "revoked "+id+": refused everywhere within 30 seconds")
			})
		},
	}
}
