package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/migrations"
)

const revokeUsage = `Usage: migrate revoke <credential>

Ends a credential for good: every API process refuses it within 30 seconds. The credential is its id, as seed and the
logs show it, or a whole token that was found where it does not belong.

To rotate: make a new credential with seed, move the client over, then revoke the old one.

Example:
  migrate revoke 4fT0aP9xKq2LmZ7c
`

func revoke(ctx context.Context, args []string, getenv func(string) string, stdout io.Writer) error {
	flags := flag.NewFlagSet("revoke", flag.ContinueOnError)
	if done, err := parse(flags, args, revokeUsage, stdout); done || err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("revoke takes one credential (migrate revoke -h explains it)")
	}
	id := flags.Arg(0)
	if token, ok := credentials.Parse(id); ok {
		id = token.ID()
	}
	conn, err := connect(ctx, getenv)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := migrations.Check(ctx, conn); err != nil {
		return err
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return credentials.Revoke(ctx, tx, id) })
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "revoked %s: refused everywhere within 30 seconds\n", id)
	return err
}
