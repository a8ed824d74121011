package credentials_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/testenv"
)

// bench is a tenant with a client, as the owner makes them, and a Verifier as the API runs it.
type bench struct {
	owner, api     *pgxpool.Pool
	tenant, client uuid.UUID
	clock          *clock
	verifier       *credentials.Verifier
}

func setup(t *testing.T) *bench {
	t.Helper()
	db := testenv.Database(t)
	b := &bench{owner: db.Pool(t, ""), api: db.Pool(t, "api_write"), clock: &clock{at: time.Unix(1_800_000_000, 0)}}
	b.verifier = credentials.NewVerifier(b.api, b.clock.now)
	b.do(t, func(tx pgx.Tx) (err error) {
		if b.tenant, err = credentials.CreateTenant(t.Context(), tx, "demo"); err != nil {
			return err
		}
		b.client, err = credentials.CreateClient(t.Context(), tx, b.tenant, "shop")
		return err
	})
	return b
}

func (b *bench) do(t *testing.T, fn func(pgx.Tx) error) {
	t.Helper()
	if err := pgx.BeginFunc(t.Context(), b.owner, fn); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) create(t *testing.T, scopes ...string) (token credentials.Token) {
	t.Helper()
	b.do(t, func(tx pgx.Tx) (err error) {
		token, err = credentials.Create(t.Context(), tx, b.client, scopes)
		return err
	})
	return token
}

func (b *bench) revoke(t *testing.T, id string) {
	t.Helper()
	b.do(t, func(tx pgx.Tx) error { return credentials.Revoke(t.Context(), tx, id) })
}

// hold blocks all reads of credentials until release is called.
func (b *bench) hold(t *testing.T) (release func()) {
	t.Helper()
	tx, err := b.owner.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), `LOCK TABLE credentials`)
	}
	if err != nil {
		t.Fatal(err)
	}
	release = func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }
	t.Cleanup(release)
	return release
}

type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func TestVerifyReturnsTenantClientAndScopes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	plain, funding := b.create(t), b.create(t, credentials.ScopeFund, credentials.ScopeFund)

	got, err := b.verifier.Verify(t.Context(), funding.Reveal())
	want := credentials.Identity{TenantID: b.tenant, ClientID: b.client, CredentialID: funding.ID(), Scopes: []string{credentials.ScopeFund}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if !got.Has(credentials.ScopeFund) {
		t.Error("the scope is not there")
	}
	got.Scopes[0] = "spoilt"
	if again, err := b.verifier.Verify(t.Context(), funding.Reveal()); err != nil || !again.Has(credentials.ScopeFund) {
		t.Errorf("a caller changed what others see: %v, %v", again, err)
	}
	if got, err := b.verifier.Verify(t.Context(), plain.Reveal()); err != nil || got.Has(credentials.ScopeFund) || got.ClientID != b.client {
		t.Errorf("the client's other credential: %+v, %v", got, err)
	}
}

func TestRefusalHidesItsReason(t *testing.T) {
	t.Parallel()
	b := setup(t)
	token, revoked := b.create(t), b.create(t)
	b.revoke(t, revoked.ID())
	body := strings.Replace(b.create(t).Reveal()[:57], "oncepay_", "", 1)
	tokens := map[string]string{
		"none":              "",
		"malformed":         "oncepay_x",
		"wrong checksum":    token.Reveal()[:57] + "000000",
		"unknown":           withChecksum("oncepay_0000000000000000_" + body[17:]),
		"revoked":           revoked.Reveal(),
		"another's secret":  withChecksum("oncepay_" + token.ID() + body[16:]),
		"unknown to SQL ' ": "oncepay_' OR true; --    _ABCDEFGHIJKLMNOPQRSTUVWXYZ012345000000",
	}
	for range 2 { // the second time with token in the cache
		for name, s := range tokens {
			if got, err := b.verifier.Verify(t.Context(), s); err != credentials.ErrUnauthorized || got.CredentialID != "" { //nolint:errorlint // nothing may be wrapped around it
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		}
		if _, err := b.verifier.Verify(t.Context(), token.Reveal()); err != nil {
			t.Fatal(err)
		}
	}
}

func withChecksum(s string) string { return s + base62CRC(s) }

func TestDatabaseOutageIsNotARefusal(t *testing.T) {
	t.Parallel()
	b := setup(t)
	token := b.create(t)
	b.api.Close()
	if _, err := b.verifier.Verify(t.Context(), token.Reveal()); err == nil || errors.Is(err, credentials.ErrUnauthorized) {
		t.Errorf("err = %v", err)
	}
	if _, err := b.verifier.Verify(t.Context(), "oncepay_x"); !errors.Is(err, credentials.ErrUnauthorized) {
		t.Errorf("malformed: %v, though no look-up is needed to say so", err)
	}
}

func TestCredentialInUseCostsNoRoundTrip(t *testing.T) {
	t.Parallel()
	b := setup(t)
	token := b.create(t)
	if _, err := b.verifier.Verify(t.Context(), token.Reveal()); err != nil {
		t.Fatal(err)
	}
	b.api.Close()
	b.clock.advance(19 * time.Second)
	if _, err := b.verifier.Verify(t.Context(), token.Reveal()); err != nil {
		t.Errorf("after 19 s: %v", err)
	}
}

func TestRevocationTakesEffectWithin30Seconds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	busy, quiet := b.create(t), b.create(t)
	for _, token := range []credentials.Token{busy, quiet} {
		if _, err := b.verifier.Verify(t.Context(), token.Reveal()); err != nil {
			t.Fatal(err)
		}
		b.revoke(t, token.ID())
	}
	b.clock.advance(20 * time.Second)
	testenv.Eventually(t, 10*time.Second, func() error { // in use, the row is renewed in the background
		if _, err := b.verifier.Verify(t.Context(), busy.Reveal()); !errors.Is(err, credentials.ErrUnauthorized) {
			return fmt.Errorf("in use, after 20 s: %w", err)
		}
		return nil
	})
	b.clock.advance(10 * time.Second)
	if _, err := b.verifier.Verify(t.Context(), quiet.Reveal()); !errors.Is(err, credentials.ErrUnauthorized) {
		t.Errorf("not in use, after 30 s: %v", err)
	}
}

func TestRenewalRunsInTheBackground(t *testing.T) {
	t.Parallel()
	b := setup(t)
	token := b.create(t)
	verify := func() {
		if _, err := b.verifier.Verify(t.Context(), token.Reveal()); err != nil {
			t.Error(err)
		}
	}
	verify()

	for _, after := range []time.Duration{20 * time.Second, 20 * time.Second} {
		b.clock.advance(after)
		release := b.hold(t)
		before := b.api.Stat().AcquireCount()
		for range 10 {
			verify() // with the table locked, at once all the same
		}
		release()
		testenv.Eventually(t, 10*time.Second, func() error {
			if n := b.api.Stat().AcquireCount() - before; n != 1 || b.api.Stat().AcquiredConns() > 0 {
				return fmt.Errorf("%d of 10 requests asked the database after %s, want 1", n, after)
			}
			return nil
		})
	}
}

func TestKnownCredentialSurvives30SecondsOfOutage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	token := b.create(t)
	if _, err := b.verifier.Verify(t.Context(), token.Reveal()); err != nil {
		t.Fatal(err)
	}
	b.api.Close()
	for _, c := range []struct {
		after time.Duration
		good  bool
	}{{20 * time.Second, true}, {9 * time.Second, true}, {time.Second, false}} {
		b.clock.advance(c.after)
		for range 3 {
			_, err := b.verifier.Verify(t.Context(), token.Reveal())
			if (err == nil) != c.good || errors.Is(err, credentials.ErrUnauthorized) {
				t.Errorf("%s later: %v", c.after, err)
			}
		}
	}
}

func TestNewCredentialWorksEvenIfTriedBefore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tx, err := b.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	token, err := credentials.Create(t.Context(), tx, b.client, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.verifier.Verify(t.Context(), token.Reveal()); !errors.Is(err, credentials.ErrUnauthorized) {
		t.Errorf("before commit: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.verifier.Verify(t.Context(), token.Reveal()); err != nil {
		t.Errorf("after commit: %v", err)
	}
}

func TestVerifyIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	b := setup(t)
	good, bad := b.create(t), b.create(t)
	b.revoke(t, bad.ID())
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			for range 20 {
				if err := b.verify(t, good.Reveal()); err != nil {
					t.Errorf("good: %v", err)
				}
				if err := b.verify(t, bad.Reveal()); !errors.Is(err, credentials.ErrUnauthorized) {
					t.Errorf("revoked: %v", err)
				}
				b.clock.advance(time.Second)
			}
		})
	}
	group.Wait()
}

func TestDatabaseNeverSeesASecret(t *testing.T) {
	t.Parallel()
	b := setup(t)
	token := b.create(t)
	var stored string
	if err := b.owner.QueryRow(t.Context(), `SELECT c::text || encode(c.secret_hash, 'escape') FROM credentials c`).Scan(&stored); err != nil {
		t.Fatal(err)
	}
	if secret := token.Reveal()[25:57]; strings.Contains(stored, secret) || strings.Contains(stored, fmt.Sprintf("%x", secret)) {
		t.Errorf("stored: %s", stored)
	}
}

func TestTokensDifferAndUseEveryCharacter(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const n = 300
	seen, used := map[string]bool{}, map[rune]int{}
	b.do(t, func(tx pgx.Tx) error {
		for range n {
			token, err := credentials.Create(t.Context(), tx, b.client, nil)
			if err != nil {
				return err
			}
			s := token.Reveal()
			if _, ok := credentials.Parse(s); !ok {
				t.Errorf("%s is not well-formed", s)
			}
			seen[s[8:24]], seen[s[25:57]] = true, true
			for _, c := range s[8:24] + s[25:57] {
				used[c]++
			}
		}
		return nil
	})
	if len(seen) != 2*n {
		t.Errorf("%d different ids and secrets, want %d", len(seen), 2*n)
	}
	// 300 × 48 characters: each of the 62 comes 232 times, give or take 15. Eight of those are no
	// accident.
	for c, times := range used {
		if times < 112 || times > 352 {
			t.Errorf("%q came %d times", c, times)
		}
	}
	if len(used) != 62 {
		t.Errorf("%d different characters", len(used))
	}
}

func TestFindClientStaysWithinItsTenant(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	b.do(t, func(tx pgx.Tx) error {
		other, err := credentials.CreateTenant(ctx, tx, "other")
		if err != nil {
			return err
		}
		if id, err := credentials.FindTenant(ctx, tx, "demo"); err != nil || id != b.tenant {
			t.Errorf("tenant %s, %v", id, err)
		}
		if id, err := credentials.FindClient(ctx, tx, b.tenant, "shop"); err != nil || id != b.client {
			t.Errorf("client %s, %v", id, err)
		}
		if _, err := credentials.FindTenant(ctx, tx, "Demo"); !errors.Is(err, credentials.ErrNotFound) {
			t.Errorf("unknown tenant: %v", err)
		}
		if _, err := credentials.FindClient(ctx, tx, other, "shop"); !errors.Is(err, credentials.ErrNotFound) {
			t.Errorf("another tenant's client: %v", err)
		}
		if err := credentials.Revoke(ctx, tx, "0000000000000000"); !errors.Is(err, credentials.ErrNotFound) {
			t.Errorf("revoke of an unknown credential: %v", err)
		}
		if _, err := credentials.Create(ctx, tx, b.client, []string{"account:fund"}); !errors.Is(err, credentials.ErrUnknownScope) {
			t.Errorf("mistyped scope: %v", err)
		}
		_, err = credentials.CreateClient(ctx, tx, other, "shop") // the same name is free there
		return err
	})
}

func TestRevokeKeepsTheFirstTime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	token := b.create(t)
	var first, second time.Time
	for _, at := range []*time.Time{&first, &second} {
		b.revoke(t, token.ID())
		if err := b.owner.QueryRow(t.Context(), `SELECT revoked_at FROM credentials`).Scan(at); err != nil {
			t.Fatal(err)
		}
	}
	if !first.Equal(second) {
		t.Errorf("revoked at %s, then at %s", first, second)
	}
}

// A tenant that has left is told so within 30 seconds. A wrong secret learns nothing.
func TestTenantThatLeft(t *testing.T) {
	t.Parallel()
	b := setup(t)
	token := b.create(t)
	for state, want := range map[string]error{"leaving": nil, "left": credentials.ErrMoved} {
		b.do(t, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `INSERT INTO tenant_moves (tenant_id, state, target) VALUES ($1, $2, '')
				ON CONFLICT (tenant_id) DO UPDATE SET state = excluded.state`, b.tenant, state)
			return err
		})
		b.clock.advance(30 * time.Second)
		if _, err := b.verifier.Verify(t.Context(), token.Reveal()); !errors.Is(err, want) {
			t.Errorf("%s: %v", state, err)
		}
		wrong := withChecksum(token.Reveal()[:25] + strings.Repeat("0", 32))
		if _, err := b.verifier.Verify(t.Context(), wrong); !errors.Is(err, credentials.ErrUnauthorized) {
			t.Errorf("%s, a wrong secret: %v", state, err)
		}
	}
}

// A change at the source would be lost: a revoked credential would stay valid at the target.
func TestNothingChangesOfATenantThatMoves(t *testing.T) {
	t.Parallel()
	b := setup(t)
	token := b.create(t)
	var client uuid.UUID
	if err := b.owner.QueryRow(t.Context(), `SELECT client_id FROM credentials`).Scan(&client); err != nil {
		t.Fatal(err)
	}

	for _, state := range []string{"leaving", "left"} {
		b.do(t, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `INSERT INTO tenant_moves (tenant_id, state, target) VALUES ($1, $2, '')
				ON CONFLICT (tenant_id) DO UPDATE SET state = excluded.state`, b.tenant, state)
			return err
		})
		b.do(t, func(tx pgx.Tx) error {
			if err := credentials.Revoke(t.Context(), tx, token.ID()); !errors.Is(err, credentials.ErrMoving) {
				t.Errorf("%s, revoke: %v", state, err)
			}
			if _, err := credentials.Create(t.Context(), tx, client, nil); !errors.Is(err, credentials.ErrMoving) {
				t.Errorf("%s, create: %v", state, err)
			}
			_, err := credentials.CreateClient(t.Context(), tx, b.tenant, "another")
			if !errors.Is(err, credentials.ErrMoving) {
				t.Errorf("%s, create a client: %v", state, err)
			}
			return nil
		})
	}

	b.do(t, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `DELETE FROM tenant_moves`)
		return err
	})
	b.revoke(t, token.ID())
}
