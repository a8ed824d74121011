package credentials_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/credentials"
)

func TestListsAreSortedAndHideSecrets(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	good, revoked := b.create(t, credentials.ScopeFund), b.create(t)
	b.revoke(t, revoked.ID())
	b.do(t, func(tx pgx.Tx) error {
		acme, err := credentials.CreateTenant(ctx, tx, "acme")
		if err != nil {
			return err
		}
		tenants, err := credentials.ListTenants(ctx, tx)
		if err != nil || len(tenants) != 2 || tenants[0].Name != "acme" || tenants[0].Clients != 0 || tenants[1].ID != b.tenant || tenants[1].Clients != 1 {
			t.Errorf("tenants: %+v, %v", tenants, err)
		}
		none, err := credentials.ListClients(ctx, tx, acme)
		if shown, _ := json.Marshal(none); err != nil || string(shown) != "[]" {
			t.Errorf("clients of another tenant: %s, %v", shown, err)
		}
		clients, err := credentials.ListClients(ctx, tx, b.tenant)
		if err != nil || len(clients) != 1 || clients[0].ID != b.client || clients[0].Credentials != 1 {
			t.Errorf("clients: %+v, %v", clients, err)
		}
		all, err := credentials.List(ctx, tx, b.client)
		if err != nil || len(all) != 2 {
			t.Fatalf("credentials: %+v, %v", all, err)
		}
		for _, c := range all {
			if (c.RevokedAt != nil) != (c.ID == revoked.ID()) || c.CreatedAt.Location().String() != "UTC" {
				t.Errorf("credential %+v", c)
			}
			if c.ID == good.ID() && !cmp.Equal(c.Scopes, []string{credentials.ScopeFund}) {
				t.Errorf("scopes %v", c.Scopes)
			}
		}
		shown, err := json.Marshal(all)
		if secret := good.Reveal()[25:57]; err != nil || strings.Contains(string(shown), secret) || strings.Contains(string(shown), "hash") {
			t.Errorf("shown: %s, %v", shown, err)
		}
		return nil
	})
}

func TestTakenNameReturnsErrExists(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	err := pgx.BeginFunc(ctx, b.owner, func(tx pgx.Tx) error {
		_, err := credentials.CreateTenant(ctx, tx, "demo")
		return err
	})
	if !errors.Is(err, credentials.ErrExists) {
		t.Errorf("tenant: %v", err)
	}
	err = pgx.BeginFunc(ctx, b.owner, func(tx pgx.Tx) error {
		_, err := credentials.CreateClient(ctx, tx, b.tenant, "shop")
		return err
	})
	if !errors.Is(err, credentials.ErrExists) {
		t.Errorf("client: %v", err)
	}
	b.do(t, func(tx pgx.Tx) error { // the same name elsewhere is another client
		other, err := credentials.CreateTenant(ctx, tx, "other")
		if err != nil {
			return err
		}
		_, err = credentials.CreateClient(ctx, tx, other, "shop")
		return err
	})
	err = pgx.BeginFunc(ctx, b.owner, func(tx pgx.Tx) error {
		_, err := credentials.CreateTenant(ctx, tx, "")
		return err
	})
	if err == nil || errors.Is(err, credentials.ErrExists) {
		t.Errorf("no name: %v", err)
	}
}
