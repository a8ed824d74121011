package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
)

func TestLostRaceIsRetried(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	for sqlstate, want := range map[string]int{
		"40001": 3, "40P01": 3, "55P03": 3, "23505": 3, // retried until it succeeds
		"22012": 1, "23503": 1, "57014": 1, "53300": 1, // not retried
	} {
		t.Run(sqlstate, func(t *testing.T) {
			t.Parallel()
			r := newRequest()
			runs := 0
			a, err := idempotency.Run(t.Context(), d.write, r, retention, func(ctx context.Context, tx pgx.Tx) (idempotency.Response, error) {
				response, err := work(r)(ctx, tx)
				if runs++; runs < 3 && err == nil {
					_, err = tx.Exec(ctx, fmt.Sprintf(`DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '%s'; END $$`, sqlstate))
				}
				return response, err
			})
			if runs != want {
				t.Errorf("%d runs, want %d", runs, want)
			}
			if want == 1 {
				if code(err) != sqlstate {
					t.Errorf("want %s, got %v", sqlstate, err)
				}
				a = d.run(t, again(r))
			}
			wantState(t, a, idempotency.New)
			if n := d.effects(t, r); n != 1 {
				t.Errorf("worked %d times", n)
			}
		})
	}
}

func TestRaceLostEveryTimeIsAnError(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	r := newRequest()
	runs := 0
	_, err := idempotency.Run(t.Context(), d.write, r, retention, func(ctx context.Context, tx pgx.Tx) (idempotency.Response, error) {
		runs++
		_, err := tx.Exec(ctx, `DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END $$`)
		return idempotency.Response{}, err
	})
	if code(err) != "40001" || runs != 4 {
		t.Errorf("%d runs, %v", runs, err)
	}
	wantState(t, d.run(t, again(r)), idempotency.New)
}

// Another session writes the table without the lock, between look-up and insert.
func TestDuplicateKeyAtStoreIsClaimedAgain(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	r := newRequest()
	a, err := idempotency.Run(t.Context(), d.write, again(r), retention, func(ctx context.Context, tx pgx.Tx) (idempotency.Response, error) {
		insert(t, d.owner, r, 0)
		return work(r)(ctx, tx)
	})
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, a, idempotency.Replay)
	if n := d.effects(t, r); n != 0 {
		t.Errorf("worked %d times", n)
	}
}

func TestClientGoneDuringCommit(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	r := newRequest()
	ctx, cancel := context.WithCancel(t.Context())
	db := &commits{db: d.write, by: []func(context.Context, pgx.Tx) error{func(ctx context.Context, tx pgx.Tx) error {
		cancel()
		return tx.Commit(ctx)
	}}}
	a, err := idempotency.Run(ctx, db, r, retention, work(r))
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, a, idempotency.New)
	if n := d.effects(t, r); n != 1 || db.started != 1 {
		t.Errorf("worked %d times in %d transactions", n, db.started)
	}
}

func TestClientGoneAfterLostCommit(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	r := newRequest()
	ctx, cancel := context.WithCancel(t.Context())
	db := &commits{db: d.write, by: []func(context.Context, pgx.Tx) error{func(ctx context.Context, tx pgx.Tx) error {
		cancel()
		return lostRequest(ctx, tx)
	}}}
	a, err := idempotency.Run(ctx, db, r, retention, work(r))
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, a, idempotency.New)
	wantState(t, d.run(t, again(r)), idempotency.Replay)
}

func TestClientGoneBeforeCommitFreesKey(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	r := newRequest()
	ctx, cancel := context.WithCancel(t.Context())
	_, err := idempotency.Run(ctx, d.write, r, retention, func(ctx context.Context, tx pgx.Tx) (idempotency.Response, error) {
		_, err := work(r)(ctx, tx)
		cancel()
		return idempotency.Response{}, errors.Join(err, ctx.Err())
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("want canceled, got %v", err)
	}
	wantState(t, d.run(t, again(r)), idempotency.New)
}

func TestPanicFreesKey(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	r := newRequest()
	func() {
		defer func() {
			if recover() != "broken" {
				t.Error("the panic did not reach the caller")
			}
		}()
		_, _ = idempotency.Run(t.Context(), d.write, r, retention, func(ctx context.Context, tx pgx.Tx) (idempotency.Response, error) {
			_, _ = work(r)(ctx, tx)
			panic("broken")
		})
	}()
	wantState(t, d.run(t, again(r)), idempotency.New)
	if n := d.effects(t, r); n != 1 {
		t.Errorf("worked %d times", n)
	}
	if n := d.write.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections were not given back", n)
	}
}

// gone is a database that lost one COMMIT and is down since; refuse is how later BEGINs fail.
type gone struct {
	pgx.Tx // nil: nothing of it is used
	refuse func(context.Context) error
	begun  int
}

func (g *gone) BeginTx(ctx context.Context, _ pgx.TxOptions) (pgx.Tx, error) {
	if g.begun++; g.begun == 1 {
		return g, nil
	}
	return nil, g.refuse(ctx)
}
func (g *gone) Conn() *pgx.Conn                { return nil }
func (g *gone) Commit(context.Context) error   { return io.ErrUnexpectedEOF }
func (g *gone) Rollback(context.Context) error { return pgx.ErrTxClosed }

func TestOutcomeUnknownWithinSeconds(t *testing.T) {
	t.Parallel()
	refused := errors.New("connection refused")
	for name, refuse := range map[string]func(context.Context) error{
		"the server refuses":        func(context.Context) error { return refused },
		"the server does not reply": func(ctx context.Context) error { <-ctx.Done(); return errors.Join(refused, ctx.Err()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				start, g := time.Now(), &gone{refuse: refuse}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second) // the client gives up earlier
				defer cancel()
				_, err := idempotency.CommitOnce(ctx, g, func(context.Context, pgx.Tx) ([]idempotency.Answer, error) {
					return []idempotency.Answer{{State: idempotency.New}}, nil
				})
				if !errors.Is(err, idempotency.ErrOutcomeUnknown) || !errors.Is(err, refused) {
					t.Errorf("want ErrOutcomeUnknown and its cause, got %v", err)
				}
				if took := time.Since(start); took < 2*time.Second || took > 4*time.Second {
					t.Errorf("it took %s", took)
				}
				if g.begun > 100 {
					t.Errorf("it was asked %d times", g.begun)
				}
			})
		})
	}
}

func TestFailedBeginDidNothing(t *testing.T) {
	t.Parallel()
	refused := errors.New("connection refused")
	g := &gone{begun: 1, refuse: func(context.Context) error { return refused }}
	_, err := idempotency.CommitOnce(t.Context(), g, nil)
	if !errors.Is(err, refused) || errors.Is(err, idempotency.ErrOutcomeUnknown) || g.begun != 2 {
		t.Errorf("begun %d times, %v", g.begun-1, err)
	}
}

// stuck is a database where every COMMIT hangs.
type stuck struct{ gone }

func (s *stuck) BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error) { return s, nil }
func (s *stuck) Commit(ctx context.Context) error                       { <-ctx.Done(); return ctx.Err() }

func TestHangingCommitEndsWithinNineSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		_, err := idempotency.CommitOnce(t.Context(), &stuck{}, func(context.Context, pgx.Tx) ([]idempotency.Answer, error) {
			return []idempotency.Answer{{State: idempotency.New}}, nil
		})
		if took := time.Since(start); !errors.Is(err, idempotency.ErrOutcomeUnknown) || took > 9*time.Second {
			t.Errorf("after %s: %v", took, err)
		}
	})
}
