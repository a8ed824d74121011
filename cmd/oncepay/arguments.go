package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/program"
)

func tenantFlag(c *cobra.Command, tenant *string) {
	program.Flag(c, tenant, "tenant", "NAME", "tenant", parseName)
	program.Require(c, "tenant")
}

// clientName is what --tenant and --client say.
type clientName struct{ tenant, client string }

func (n *clientName) flags(c *cobra.Command) {
	tenantFlag(c, &n.tenant)
	program.Flag(c, &n.client, "client", "NAME", "client of the tenant", parseName)
	program.Require(c, "client")
}

func (n *clientName) find(ctx context.Context, tx pgx.Tx) (uuid.UUID, error) {
	tenantID, err := credentials.FindTenant(ctx, tx, n.tenant)
	if err != nil {
		return uuid.Nil, err
	}
	return credentials.FindClient(ctx, tx, tenantID, n.client)
}

// parseName checks the rule of the database.
func parseName(s string) (string, error) {
	if n := utf8.RuneCountInString(s); !utf8.ValidString(s) || n < 1 || n > 100 {
		return "", errors.New("it must be a name of 1 to 100 characters")
	}
	return s, nil
}

func parseID(s string) (uuid.UUID, error) {
	id, err := uuid.Parse(s)
	if err != nil {
		return id, errors.New("it must be an id such as 0198a6de-5c1f-7000-8000-0123456789ab")
	}
	return id, nil
}

// parseAmount reads decimal digits only: 010 is not 8, and 25.00 is not 2500.
func parseAmount(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, errors.New(
			"it must be a whole number of minor units, such as 2500 for 25.00 USD")
	}
	if n < 1 || n > payments.MaxAmount {
		return 0, fmt.Errorf(
			"it must be from 1 to %d, in minor units", int64(payments.MaxAmount))
	}
	return n, nil
}

func parseCurrency(s string) (string, error) {
	if !payments.KnownCurrency(s) {
		return "", errors.New("it must be an ISO 4217 code in capitals, such as USD")
	}
	return s, nil
}

func parseText(s string) (string, error) {
	if !utf8.ValidString(s) {
		return "", errors.New("it must be UTF-8")
	}
	return s, nil
}

func parseScopes(s string) ([]string, error) {
	scopes := strings.Split(s, ",")
	return scopes, credentials.CheckScopes(scopes)
}

func scopesFlag(c *cobra.Command, scopes *[]string) {
	*scopes = []string{} // which is [] in JSON
	program.Flag(c, scopes, "scopes", "SCOPES",
		"scopes of the credential, separated by commas; there is "+credentials.ScopeFund,
		parseScopes)
}

// parseKey checks a key by the service's own rules and returns it bare: in double quotes it is the
// same key.
func parseKey(s string) (string, error) {
	return idempotency.ParseKey(http.Header{idempotency.Header: {s}})
}

// aToken matches credentials, even truncated ones.
var aToken = regexp.MustCompile(`oncepay_[0-9A-Za-z]{16}_[0-9A-Za-z]+`)

// noTokens rejects credentials among the arguments, which end up in the shell's history and the
// process list. Only revoke takes a whole one: it may have been found where it does not belong.
func noTokens(root *cobra.Command, args []string) error {
	c, _, err := root.Find(args)
	if err == nil && c.CommandPath() == "oncepay credentials revoke" {
		return nil
	}
	if aToken.MatchString(strings.Join(args, " ")) {
		return errors.New("a credential does not belong among the arguments: put it into " +
			"ONCEPAY_TOKEN (and revoke it, if others can see it here)")
	}
	return nil
}

// withoutTokens is the last line of defense, whatever a message quotes.
func withoutTokens(err error) error {
	return errors.New(aToken.ReplaceAllString(err.Error(), "[a credential]"))
}
