package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/testenv"
)

func TestTenantsClientsAndCredentialsAreMadeAndListed(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	env := owner(db.URL)
	if out := must(t, env, "tenants", "list", "--json"); out != "[]\n" {
		t.Errorf("of nothing: %s", out)
	}
	var tenant, client named
	mustJSON(t, &tenant, env, "tenants", "create", "acme")
	mustJSON(t, &client, env, "clients", "create", "shop", "--tenant", "acme") // flags behind the argument
	must(t, env, "clients", "create", "--tenant", "acme", "--", "-back-office")
	var made credential
	mustJSON(t, &made, env, "credentials", "create", "--tenant", "acme", "--client", "shop", "--scopes", credentials.ScopeFund)

	got, err := credentials.NewVerifier(db.Pool(t, "api_write"), time.Now).Verify(t.Context(), made.Token)
	want := credentials.Identity{TenantID: tenant.ID, ClientID: client.ID, CredentialID: made.ID, Scopes: []string{credentials.ScopeFund}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("the token: %v (-want +got):\n%s", err, diff)
	}

	var tenants []credentials.Tenant
	mustJSON(t, &tenants, env, "tenants", "list")
	if len(tenants) != 1 || tenants[0].ID != tenant.ID || tenants[0].Clients != 2 || tenants[0].Move != "" {
		t.Errorf("tenants: %+v", tenants)
	}
	var clients []credentials.Client
	mustJSON(t, &clients, env, "clients", "list", "--tenant", "acme")
	if len(clients) != 2 || clients[0].Name != "-back-office" || clients[1].ID != client.ID || clients[1].Credentials != 1 {
		t.Errorf("clients: %+v", clients)
	}
	list := must(t, env, "credentials", "list", "--tenant", "acme", "--client", "shop")
	if !strings.Contains(list, made.ID+"  20") || !strings.Contains(list, "Z  -        accounts:fund\n") || strings.Contains(list, made.Token[25:57]) {
		t.Errorf("credentials:\n%s", list)
	}
	text := must(t, env, "credentials", "create", "--tenant", "acme", "--client", "shop")
	_, token, _ := strings.Cut(text, "The token, shown this once:\n")
	if _, whole := credentials.Parse(strings.TrimSpace(token)); !whole {
		t.Errorf("created:\n%s", text)
	}

	if _, err := db.Pool(t, "").Exec(t.Context(), `INSERT INTO tenant_moves (tenant_id, target) VALUES ($1, '1/b')`, tenant.ID); err != nil {
		t.Fatal(err)
	}
	if out := must(t, env, "tenants", "list"); !strings.Contains(out, "  leaving 1/b\n") {
		t.Errorf("one that leaves:\n%s", out)
	}
}

func TestWhatIsTakenOrNotThereIsSaidInOneLine(t *testing.T) {
	t.Parallel()
	env := owner(testenv.Database(t).URL)
	must(t, env, "tenants", "create", "acme")
	must(t, env, "clients", "create", "--tenant", "acme", "shop")
	for line, args := range map[string][]string{
		`create tenant "acme": the name is taken`: {"tenants", "create", "acme"},
		`create client "shop": the name is taken`: {"clients", "create", "--tenant", "acme", "shop"},
		`find tenant "Acme": not found`:           {"clients", "list", "--tenant", "Acme"},
		`find client "office": not found`:         {"credentials", "list", "--tenant", "acme", "--client", "office"},
		"revoke credential: not found":            {"credentials", "revoke", "0000000000000000"},
	} {
		stdout, stderr, code := oncepay(t, env, args...)
		if code != exitFailed || stdout != "" || stderr != "oncepay: "+line+"\n" {
			t.Errorf("%q: exit %d, %s%s", args, code, stdout, stderr)
		}
	}
}

func TestARevokedCredentialIsRefused(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	env := owner(db.URL)
	var byID, byToken seeded
	mustJSON(t, &byID, env, "seed", "--tenant", "demo", "--client", "shop")
	mustJSON(t, &byToken, env, "seed", "--tenant", "demo", "--client", "shop")
	must(t, env, "credentials", "revoke", byID.CredentialID)
	if out := must(t, env, "credentials", "revoke", byToken.Token); strings.Contains(out, byToken.Token) || !strings.Contains(out, byToken.CredentialID) {
		t.Errorf("out: %s", out)
	}
	for _, s := range []seeded{byID, byToken} {
		if _, err := credentials.NewVerifier(db.Pool(t, "api_write"), time.Now).Verify(t.Context(), s.Token); !errors.Is(err, credentials.ErrUnauthorized) {
			t.Errorf("verify: %v", err)
		}
	}
	if list := must(t, env, "credentials", "list", "--tenant", "demo", "--client", "shop"); strings.Contains(list, " - ") {
		t.Errorf("shown as good:\n%s", list)
	}
}

func TestANameCannotMoveTheCursorOfATerminal(t *testing.T) {
	t.Parallel()
	env := owner(testenv.Database(t).URL)
	must(t, env, "tenants", "create", "a\tb\x1b[2J\u202e")
	if out := must(t, env, "tenants", "list"); strings.ContainsAny(out, "\t\x1b\u202e") || !strings.Contains(out, "a\uFFFDb") {
		t.Errorf("out: %q", out)
	}
}
