package idempotency_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/testenv"
)

func TestPeek(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	r := newRequest()
	prober := begin(t, d.write) // its transaction stays open all the time: it must hold nothing
	peek := func(r idempotency.Request) idempotency.Answer {
		a, err := idempotency.Peek(t.Context(), prober, r, retention)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	wantState(t, peek(r), idempotency.New)
	holder := begin(t, d.write)
	as := claim(t, holder, r)
	wantState(t, as[0], idempotency.New)
	wantState(t, peek(r), idempotency.InProgress)
	wantState(t, peek(changed(r)), idempotency.InProgress)
	other := again(r)
	other.Key += "x"
	wantState(t, peek(other), idempotency.New)
	as[0].Response = idempotency.Response{Status: 402, Body: []byte("no")}
	if err := idempotency.Store(t.Context(), holder, []idempotency.Request{r}, as); err != nil {
		t.Fatal(err)
	}
	if err := holder.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := as[0]
	want.State = idempotency.Replay
	if diff := cmp.Diff(want, peek(again(r))); diff != "" {
		t.Error(diff)
	}
	wantState(t, peek(changed(r)), idempotency.Mismatch)
	unknown := changed(r)
	unknown.Fingerprint.Version++
	wantState(t, peek(unknown), idempotency.UnknownFingerprintVersion)
	unknown.Fingerprint = idempotency.Fingerprint{}
	if diff := cmp.Diff(want, peek(unknown)); diff != "" {
		t.Errorf("asked about the key alone: %s", diff)
	}
}

func TestPeekIgnoresOtherDatabases(t *testing.T) {
	t.Parallel()
	here, there := newDatabase(t), newDatabase(t)
	r := newRequest()
	claim(t, begin(t, there.write), r)
	wantState(t, here.peek(t, r), idempotency.New)
}

func TestPeekSeesOwnTenantOnly(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	write, read := db.Pool(t, "api_write"), db.Pool(t, "api_read")
	r, stranger := newRequest(), newRequest()
	_, err := idempotency.Run(t.Context(), write, r, retention, func(context.Context, pgx.Tx) (idempotency.Response, error) {
		return idempotency.Response{Status: 200}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		as   idempotency.Request
		want idempotency.State
	}{{r, idempotency.Replay}, {stranger, idempotency.New}} {
		tx := begin(t, read)
		mustExec(t, tx, `SELECT set_config('oncepay.tenant', $1, true)`, c.as.TenantID.String())
		a, err := idempotency.Peek(t.Context(), tx, r, retention)
		if err != nil {
			t.Fatal(err)
		}
		wantState(t, a, c.want)
	}
}

// A key that is watched goes from new to in progress to completed, and never back.
func TestPeekDuringCommit(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	for range 40 {
		r := newRequest()
		claimed, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			_, err := idempotency.Run(context.Background(), d.write, r, retention, func(ctx context.Context, tx pgx.Tx) (idempotency.Response, error) {
				close(claimed)
				return work(r)(ctx, tx)
			})
			if err != nil {
				t.Error(err)
			}
		}()
		<-claimed
		for committed := false; ; {
			select {
			case <-done:
				committed = true
			default:
			}
			a := d.peek(t, again(r))
			if a.State == idempotency.Replay {
				break
			}
			if a.State != idempotency.InProgress || committed {
				t.Fatalf("the key is %s, committed: %t", a.State, committed)
			}
		}
		<-done
	}
}

// meddled runs meddle before the batch of that number is sent, and counts them.
type meddled struct {
	pgx.Tx
	meddle map[int]func()
	sent   int
}

func (m *meddled) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	m.sent++
	if meddle := m.meddle[m.sent]; meddle != nil {
		meddle()
	}
	return m.Tx.SendBatch(ctx, b)
}

// A holder that commits after the first look has let go of the lock when pg_locks is read.
func TestPeekSeesCommitBetweenItsLooks(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	r := newRequest()
	holder := begin(t, d.write)
	as := claim(t, holder, r)
	as[0].Response = idempotency.Response{Status: 201, Body: []byte("done")}
	if err := idempotency.Store(t.Context(), holder, []idempotency.Request{r}, as); err != nil {
		t.Fatal(err)
	}
	commit := func() {
		if err := holder.Commit(t.Context()); err != nil {
			t.Error(err)
		}
	}

	tx := &meddled{Tx: begin(t, d.write), meddle: map[int]func(){2: commit}}
	for _, looks := range []int{2, 1} { // and of a finished key one is enough
		tx.sent = 0
		a, err := idempotency.Peek(t.Context(), tx, again(r), retention)
		if err != nil {
			t.Fatal(err)
		}
		wantState(t, a, idempotency.Replay)
		if tx.sent != looks {
			t.Errorf("%d looks, want %d", tx.sent, looks)
		}
	}
}
