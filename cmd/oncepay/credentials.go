package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/credentials"
)

const listCredentialsUsage = `Usage: oncepay credentials list -tenant name -client name [flags]

Shows the credentials of a client, the oldest first. Their secrets are nowhere to be had.

Example:
  oncepay credentials list -tenant acme -client shop
`

func (c *call) listCredentials(ctx context.Context, args []string) error {
	f := newFlags("credentials list", listCredentialsUsage)
	tenant, client := f.tenant(), f.client()
	if _, err := f.parse(c, args); err != nil {
		return err
	}

	check := checks{flags: f}
	check.name("-tenant", *tenant)
	check.name("-client", *client)
	if err := check.err(); err != nil {
		return err
	}

	var all []credentials.Credential
	err := c.look(ctx, func(tx pgx.Tx) error {
		clientID, err := findClient(ctx, tx, *tenant, *client)
		if err != nil {
			return err
		}
		all, err = credentials.List(ctx, tx, clientID)
		return err
	})
	if err != nil {
		return err
	}

	return c.show(f, all, func(w io.Writer) {
		row(w, "CREDENTIAL", "CREATED", "REVOKED", "SCOPES")
		for _, k := range all {
			row(w, k.ID, k.CreatedAt, k.RevokedAt, strings.Join(k.Scopes, ","))
		}
	})
}

const createCredentialUsage = `Usage: oncepay credentials create -tenant name -client name [flags]

Creates a credential of a client. Its token is shown this once and stored nowhere.

Examples:
  oncepay credentials create -tenant acme -client shop
  oncepay credentials create -tenant acme -client shop -scopes accounts:fund -json
`

// credential is a new one.
type credential struct {
	ID       string    `json:"id"`
	Token    string    `json:"token"` // revealed, on purpose
	ClientID uuid.UUID `json:"client_id"`
	Scopes   []string  `json:"scopes"`
}

func (c *call) createCredential(ctx context.Context, args []string) error {
	f := newFlags("credentials create", createCredentialUsage)
	tenant, client, list := f.tenant(), f.client(), f.scopes()
	if _, err := f.parse(c, args); err != nil {
		return err
	}

	check := checks{flags: f}
	check.name("-tenant", *tenant)
	check.name("-client", *client)
	scopes := check.scopes(*list)
	if err := check.err(); err != nil {
		return err
	}

	made := credential{Scopes: scopes}
	err := c.change(ctx, func(tx pgx.Tx) (err error) {
		if made.ClientID, err = findClient(ctx, tx, *tenant, *client); err != nil {
			return err
		}
		token, err := credentials.Create(ctx, tx, made.ClientID, scopes)
		// Revealed here only: the database keeps no token.
		made.ID, made.Token = token.ID(), token.Reveal()
		return err
	})
	if err != nil {
		return err
	}

	return c.show(f, made, func(w io.Writer) {
		row(w, "credential", made.ID, strings.Join(made.Scopes, ","))
		fmt.Fprintf(w, "\nThe token, shown this once:\n%s\n", made.Token)
	})
}

func (f *flags) scopes() *string {
	return f.String("scopes", "",
		"`scopes` of the credential, separated by commas; there is "+credentials.ScopeFund)
}

// scopes parses and checks the flag. Without it the list is empty, which is [] in JSON.
func (c *checks) scopes(list string) []string {
	if list == "" {
		return []string{}
	}

	scopes := strings.Split(list, ",")
	c.problems = append(c.problems, credentials.CheckScopes(scopes))
	return scopes
}

const revokeCredentialUsage = `Usage: oncepay credentials revoke [flags] CREDENTIAL

Ends a credential for good: every API process refuses it within 30 seconds. CREDENTIAL is its id, as credentials list and the
logs show it, or a whole token that was found where it does not belong.

To rotate: make a new credential with credentials create, move the client over, then revoke the old one.

Example:
  oncepay credentials revoke 4fT0aP9xKq2LmZ7c
`

func (c *call) revokeCredential(ctx context.Context, args []string) error {
	f := newFlags("credentials revoke", revokeCredentialUsage)
	found, err := f.parse(c, args, "CREDENTIAL")
	if err != nil {
		return err
	}

	var revoked struct {
		ID string `json:"id"`
	}
	revoked.ID = found[0]
	// Accept a whole token, too: it may have been found where it does not belong.
	if token, ok := credentials.Parse(found[0]); ok {
		revoked.ID = token.ID()
	}

	if err := c.change(ctx, func(tx pgx.Tx) error {
		return credentials.Revoke(ctx, tx, revoked.ID)
	}); err != nil {
		return err
	}

	return c.show(f, revoked, func(w io.Writer) {
		row(w, "revoked "+revoked.ID+": refused everywhere within 30 seconds")
	})
}
