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

func (o operator) listCredentials() *cobra.Command {
	c := &cobra.Command{
		Use:     "list",
		Short:   "Show the credentials of a client, the oldest first; their secrets are stored nowhere",
		Example: "  oncepay credentials list --tenant acme --client shop",
	}

	var of clientName
	of.flags(c)

	c.RunE = runs(o, looks, func(ctx context.Context, tx pgx.Tx) ([]credentials.Credential, error) {
		clientID, err := of.find(ctx, tx)
		if err != nil {
			return nil, err
		}
		return credentials.List(ctx, tx, clientID)
	}, func(w io.Writer, all []credentials.Credential) {
		program.Row(w, "CREDENTIAL", "CREATED", "REVOKED", "SCOPES")
		for _, k := range all {
			program.Row(w, k.ID, k.CreatedAt, k.RevokedAt, strings.Join(k.Scopes, ","))
		}
	})
	return c
}

// credential is a new one.
type credential struct {
	ID       string    `json:"id"`
	Token    string    `json:"token"` // revealed, on purpose
	ClientID uuid.UUID `json:"client_id"`
	Scopes   []string  `json:"scopes"`
}

func (o operator) createCredential() *cobra.Command {
	c := &cobra.Command{
		Use:   "create",
		Short: "Create a credential of a client; its token is shown this once and stored nowhere",
		Long: `Creates a credential of a client. Its token is shown this once and stored nowhere. To rotate
one: create a new one, move the client over, then revoke the old one.`,
		Example: "  oncepay credentials create --tenant acme --client shop\n" +
			"  oncepay credentials create --tenant acme --client shop --scopes accounts:fund --json",
	}

	var of clientName
	of.flags(c)
	var scopes []string
	scopesFlag(c, &scopes)

	c.RunE = runs(o, changes, func(ctx context.Context, tx pgx.Tx) (made credential, err error) {
		clientID, err := of.find(ctx, tx)
		if err != nil {
			return made, err
		}

		// Revealed here only: the database keeps no token.
		token, err := credentials.Create(ctx, tx, clientID, scopes)
		return credential{token.ID(), token.Reveal(), clientID, scopes}, err
	}, func(w io.Writer, made credential) {
		program.Row(w, "credential", made.ID, strings.Join(made.Scopes, ","))
		fmt.Fprintf(w, "\nThe token, shown this once:\n%s\n", made.Token)
	})
	return c
}

func (o operator) revokeCredential() *cobra.Command {
	c := &cobra.Command{
		Use:   "revoke CREDENTIAL",
		Short: "End a credential for good: every API process refuses it within 30 seconds",
		Long: `Ends a credential for good: every API process refuses it within 30 seconds. CREDENTIAL is its
id, as credentials list and the logs show it, or a whole token that was found where it does not
belong.`,
		Example: "  oncepay credentials revoke 4fT0aP9xKq2LmZ7c",
	}

	var id string
	program.Argument(c, &id, parseCredential)

	c.RunE = runs(o, changes, func(ctx context.Context, tx pgx.Tx) (map[string]string, error) {
		return map[string]string{"id": id}, credentials.Revoke(ctx, tx, id)
	}, func(w io.Writer, _ map[string]string) {
		program.Row(w, "revoked "+id+": refused everywhere within 30 seconds")
	})
	return c
}

// parseCredential returns the id of a credential, or of a whole token.
func parseCredential(s string) (string, error) {
	// A whole one may have been found where it does not belong.
	if token, whole := credentials.Parse(s); whole {
		return token.ID(), nil
	}
	return s, nil
}
