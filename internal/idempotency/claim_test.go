package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/testenv"
)

func TestClaim(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)

	t.Run("repeat gets the first answer byte for byte", func(t *testing.T) {
		t.Parallel()
		r := newRequest()
		first := d.run(t, r)
		wantState(t, first, idempotency.New)
		if first.RequestID != r.RequestID || first.Date.IsZero() || !first.Expires.Equal(first.Date.Add(retention)) {
			t.Errorf("first answer %+v", first)
		}
		want := first
		want.State = idempotency.Replay
		for range 3 {
			if diff := cmp.Diff(want, d.run(t, again(r))); diff != "" {
				t.Error(diff)
			}
		}
		if n := d.effects(t, r); n != 1 {
			t.Errorf("worked %d times", n)
		}
	})
	t.Run("other request is a mismatch and sees no answer", func(t *testing.T) {
		t.Parallel()
		r := newRequest()
		d.run(t, r)
		a := d.run(t, changed(r))
		wantState(t, a, idempotency.Mismatch)
		if diff := cmp.Diff(idempotency.Response{}, a.Response); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("unknown fingerprint version, equal or not", func(t *testing.T) {
		t.Parallel()
		r := newRequest()
		d.run(t, r)
		r.Fingerprint.Version++
		a := d.run(t, again(r))
		wantState(t, a, idempotency.UnknownFingerprintVersion)
		if a.Response.Body != nil || d.effects(t, r) != 1 {
			t.Errorf("%+v", a)
		}
	})
	t.Run("older fingerprint version is compared with its own", func(t *testing.T) {
		t.Parallel()
		r := newRequest()
		r.Fingerprint.Version = 2
		d.run(t, r)
		oldest, same, other := changed(r).Fingerprint, r.Fingerprint, changed(r).Fingerprint
		oldest.Version, other.Version = 1, 2
		now := idempotency.Fingerprint{Version: 3, Sum: [32]byte{3}} // by today's rules another sum
		for _, c := range []struct {
			older []idempotency.Fingerprint
			want  idempotency.State
		}{
			{[]idempotency.Fingerprint{same}, idempotency.Replay},
			{[]idempotency.Fingerprint{oldest, same}, idempotency.Replay},
			{[]idempotency.Fingerprint{oldest, other}, idempotency.Mismatch},
			{[]idempotency.Fingerprint{oldest}, idempotency.UnknownFingerprintVersion},
			{nil, idempotency.UnknownFingerprintVersion},
		} {
			repeat := again(r)
			repeat.Fingerprint, repeat.Older = now, c.older
			wantState(t, d.run(t, repeat), c.want)
			wantState(t, d.peek(t, repeat), c.want)
		}
		if n := d.effects(t, r); n != 1 {
			t.Errorf("worked %d times", n)
		}
	})
	t.Run("finished key is replayed while another session holds it", func(t *testing.T) {
		t.Parallel()
		r := newRequest()
		d.run(t, r)
		wantState(t, claim(t, begin(t, d.write), again(r))[0], idempotency.Replay)
		wantState(t, d.run(t, again(r)), idempotency.Replay)
		wantState(t, d.run(t, changed(r)), idempotency.Mismatch)
	})
	t.Run("tenants and clients have separate keys", func(t *testing.T) {
		t.Parallel()
		r := newRequest()
		otherTenant, otherClient := again(r), again(r)
		otherTenant.TenantID, otherClient.ClientID = uuid.New(), uuid.New()
		for i, r := range []idempotency.Request{r, otherTenant, otherClient} {
			wantState(t, d.run(t, r), idempotency.New)
			if n := d.effects(t, r); n != i+1 {
				t.Errorf("worked %d times, want %d", n, i+1)
			}
		}
	})
	t.Run("keys are case-sensitive and kept whole", func(t *testing.T) {
		t.Parallel()
		r := newRequest()
		for _, key := range []string{"abc", "ABC", fmt.Sprintf("%0255d", 1), fmt.Sprintf("%0255d", 2)} {
			r.Key = key
			wantState(t, d.run(t, again(r)), idempotency.New)
		}
	})
	t.Run("empty body is replayed", func(t *testing.T) {
		t.Parallel()
		r := newRequest()
		for _, want := range []idempotency.State{idempotency.New, idempotency.Replay} {
			a, err := idempotency.Run(t.Context(), d.write, again(r), retention, func(context.Context, pgx.Tx) (idempotency.Response, error) {
				return idempotency.Response{Status: 204}, nil
			})
			if err != nil || a.State != want || a.Response.Status != 204 || len(a.Response.Body) != 0 {
				t.Errorf("%+v, %v", a, err)
			}
		}
	})
	t.Run("error or 5xx leaves the key free", func(t *testing.T) {
		t.Parallel()
		r := newRequest()
		broken := errors.New("broken")
		for _, c := range []struct {
			status int
			err    error
		}{{201, broken}, {500, nil}, {0, nil}, {199, nil}} {
			_, err := idempotency.Run(t.Context(), d.write, again(r), retention, func(ctx context.Context, tx pgx.Tx) (idempotency.Response, error) {
				response, err := work(r)(ctx, tx)
				response.Status = c.status
				return response, errors.Join(err, c.err)
			})
			if err == nil || c.err != nil && !errors.Is(err, c.err) {
				t.Errorf("status %d, %v: got %v", c.status, c.err, err)
			}
		}
		wantState(t, d.run(t, r), idempotency.New)
		if n := d.effects(t, r); n != 1 {
			t.Errorf("worked %d times", n)
		}
	})
}

// The rows are written in the transaction that claims, so that both have the same now().
func TestKeyLivesForItsRetention(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	makeDays(t, d, 4)
	for name, c := range map[string]struct {
		age  time.Duration
		want idempotency.State
	}{
		"yesterday":                {day, idempotency.Replay},
		"three days old":           {3 * day, idempotency.Replay},
		"older than the live days": {4 * day, idempotency.New},
		"tomorrow: this transaction began before midnight":  {-day, idempotency.Replay},
		"the day after tomorrow: the server's clock jumped": {-2 * day, idempotency.Replay},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, tx := newRequest(), begin(t, d.owner)
			insert(t, tx, r, c.age)
			a := claim(t, tx, r)[0]
			wantState(t, a, c.want)
			if c.want == idempotency.Replay && string(a.Response.Body) != "before" {
				t.Errorf("replayed %q", a.Response.Body)
			}
			if a, err := idempotency.Peek(t.Context(), tx, r, retention); err != nil || c.want == idempotency.Replay && a.State != c.want {
				t.Errorf("Peek: %s, %v", a.State, err)
			}
		})
	}
}

func TestYoungestAnswerCounts(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	makeDays(t, d, 3)
	for _, ages := range [][]time.Duration{{72 * time.Hour, 0}, {0, 72 * time.Hour}} {
		r, tx := newRequest(), begin(t, d.owner)
		for _, age := range ages {
			insert(t, tx, r, age)
		}
		a := claim(t, tx, r)[0]
		wantState(t, a, idempotency.Replay)
		if age := time.Since(a.Date); age > time.Hour {
			t.Errorf("the answer of %s ago is replayed", age)
		}
	}
}

func TestHashCollisionIsNoMatch(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	for column, value := range map[string]string{"tenant_id": uuid.NewString(), "client_id": uuid.NewString(), "key": "another"} {
		r, tx := newRequest(), begin(t, d.owner)
		insert(t, tx, r, 0)
		mustExec(t, tx, `UPDATE idempotency_keys SET `+column+` = $1 WHERE key = $2`, value, r.Key)
		wantState(t, claim(t, tx, r)[0], idempotency.New)
	}
}

func TestClaimBatch(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	held := begin(t, d.write)
	rs, want := make([]idempotency.Request, 100), make([]string, 100)
	for i := range rs {
		rs[i], want[i] = newRequest(), "new"
		switch i % 5 {
		case 1:
			d.run(t, rs[i])
			want[i] = "replay"
		case 2:
			claim(t, held, rs[i])
			want[i] = "in_progress"
		case 3:
			d.run(t, rs[i])
			rs[i], want[i] = changed(rs[i]), "mismatch"
		case 4:
			rs[i], want[i] = changed(rs[i-4]), "in_progress" // the same key as one that is new
		}
	}
	as, err := idempotency.CommitOnce(t.Context(), d.write, attempt(rs...))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, states(as)); diff != "" {
		t.Error(diff)
	}
	for i, r := range rs {
		a := d.peek(t, r)
		if want[i] == "new" && (a.State != idempotency.Replay || a.Response.Location != "/effects/"+r.Key || string(a.Response.Body) != string(as[i].Response.Body)) {
			t.Errorf("%d: stored %s %q", i, a.State, a.Response.Location)
		}
	}
}

func TestClaimRequiresReadCommitted(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		r := newRequest()
		tx, err := d.write.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := idempotency.Claim(t.Context(), tx, []idempotency.Request{r}, retention); !errors.Is(err, idempotency.ErrIsolation) {
			t.Errorf("%s: want ErrIsolation, got %v", level, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Errorf("the connection is in a bad state: %v", err)
		}
		wantState(t, d.run(t, r), idempotency.New)
	}
}

func TestStatementsPerBatchAreConstant(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	var counter statements
	pool := openPool(t, d.url, &counter)
	for _, n := range []int{1, 100} {
		rs := make([]idempotency.Request, n)
		for i := range rs {
			rs[i] = newRequest()
		}
		tx := begin(t, pool)
		before := counter.Load()
		as := claim(t, tx, rs...)
		claimed := counter.Load() - before
		for i := range as {
			as[i].Response = idempotency.Response{Status: 200}
		}
		if err := idempotency.Store(t.Context(), tx, rs, as); err != nil {
			t.Fatal(err)
		}
		if stored := counter.Load() - before - claimed; claimed != 3 || stored != 1 {
			t.Errorf("%d requests: %d statements to claim, %d to store", n, claimed, stored)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// statements counts what is sent to the server, one by one or in batches.
type statements struct{ atomic.Int64 }

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	s.Add(1)
	return ctx
}
func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (s *statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (s *statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) { s.Add(1) }
func (s *statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func TestClaimRequiresFingerprint(t *testing.T) {
	t.Parallel()
	pool := testenv.Database(t).Pool(t, "api_write")
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	r := idempotency.Request{TenantID: uuid.New(), ClientID: uuid.New(), Key: "k"}
	if _, err := idempotency.Claim(t.Context(), tx, []idempotency.Request{r}, 0); err == nil || !strings.Contains(err.Error(), "fingerprint") {
		t.Errorf("err = %v: any finished key would have been its replay", err)
	}
}

// The other key with r's hash is of a later day: within one day the primary key admits only one.
func TestClaimSeparatesCollidingKeys(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	r, twin := newRequest(), newRequest()
	makeDays(t, d, 1)
	insert(t, d.owner, r, day)
	d.run(t, twin)
	mustExec(t, d.owner, `UPDATE idempotency_keys SET key_hash = (SELECT key_hash FROM idempotency_keys WHERE key = $2) WHERE key = $1`,
		twin.Key, r.Key)

	wantState(t, claim(t, begin(t, d.write), again(r))[0], idempotency.Replay)
	wantState(t, d.peek(t, again(r)), idempotency.Replay)
	wantState(t, claim(t, begin(t, d.write), again(twin))[0], idempotency.New) // it has another hash
}
