package idempotency_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
)

// commits is a Beginner whose nth transaction commits by the nth function, the later ones as usual.
type commits struct {
	db      idempotency.Beginner
	by      []func(context.Context, pgx.Tx) error
	started int
}

func (c *commits) BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error) {
	inner, err := c.db.BeginTx(ctx, o)
	if err != nil {
		return nil, err
	}
	commit := func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }
	if c.started < len(c.by) {
		commit = c.by[c.started]
	}
	c.started++
	return &committer{Tx: inner, commit: commit}, nil
}

type committer struct {
	pgx.Tx
	commit func(context.Context, pgx.Tx) error
}

func (c *committer) Commit(ctx context.Context) error { return c.commit(ctx, c.Tx) }

// errLost is pgx's error for a connection that broke during COMMIT. pgx calls it safe to retry.
type errLost struct{}

func (errLost) Error() string     { return "connection lost" }
func (errLost) SafeToRetry() bool { return true }

// lostReply commits, but the answer never arrives.
func lostReply(ctx context.Context, tx pgx.Tx) error {
	return errors.Join(tx.Commit(ctx), errLost{})
}

// lostRequest loses the connection before COMMIT arrives.
func lostRequest(ctx context.Context, tx pgx.Tx) error {
	return errors.Join(tx.Conn().Close(ctx), errLost{})
}

func TestCommitOnce(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	type script = []func(context.Context, pgx.Tx) error
	for name, by := range map[string]script{
		"reply lost after commit":       {lostReply},
		"request lost before commit":    {lostRequest},
		"request lost, then reply lost": {lostRequest, lostReply},
		"request lost twice":            {lostRequest, lostRequest},
		"reply lost, then the replay's": {lostReply, lostReply},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRequest()
			db := &commits{db: d.write, by: by}
			first, err := idempotency.Run(t.Context(), db, r, retention, work(r))
			if err != nil {
				t.Fatal(err)
			}
			wantState(t, first, idempotency.New)
			if n := d.effects(t, r); n != 1 || db.started <= len(by) {
				t.Errorf("worked %d times in %d transactions", n, db.started)
			}
			first.State = idempotency.Replay
			if diff := cmp.Diff(first, d.run(t, again(r))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCommitStillRunningIsAwaited(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	r := newRequest()
	var late pgx.Tx
	db := &commits{db: d.write, by: []func(context.Context, pgx.Tx) error{
		func(_ context.Context, tx pgx.Tx) error { late = tx; return errLost{} },
		func(ctx context.Context, tx pgx.Tx) error { // asked while the first is open: now that one commits
			return errors.Join(late.Commit(ctx), tx.Commit(ctx))
		},
	}}
	a, err := idempotency.Run(t.Context(), keepOpen{db}, r, retention, work(r))
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, a, idempotency.New)
	if n := d.effects(t, r); n != 1 || db.started != 3 {
		t.Errorf("worked %d times in %d transactions", n, db.started)
	}
}

// keepOpen never rolls back the first transaction: its server has not noticed that the client is
// gone.
type keepOpen struct{ *commits }

func (k keepOpen) BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error) {
	first := k.started == 0
	tx, err := k.commits.BeginTx(ctx, o)
	if first && err == nil {
		return unrolled{tx}, nil
	}
	return tx, err
}

type unrolled struct{ pgx.Tx }

func (unrolled) Rollback(context.Context) error { return nil }

// Another transaction holds a key of the batch at first. What a later run does is a first answer
// too.
func TestCommitOnceBatch(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	for name, second := range map[string]func(context.Context, pgx.Tx) error{
		"second reply lost too": lostReply,
		"second request lost":   lostRequest,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mine, held, old := newRequest(), newRequest(), newRequest()
			d.run(t, old)
			holder := begin(t, d.write)
			claim(t, holder, held)
			db := &commits{db: d.write, by: []func(context.Context, pgx.Tx) error{
				func(ctx context.Context, tx pgx.Tx) error {
					return errors.Join(lostReply(ctx, tx), holder.Rollback(ctx))
				},
				second,
			}}
			as, err := idempotency.CommitOnce(t.Context(), db, attempt(mine, held, again(old)))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"new", "new", "replay"}, states(as)); diff != "" {
				t.Error(diff)
			}
			if d.effects(t, mine) != 1 || d.effects(t, held) != 1 || d.effects(t, old) != 1 {
				t.Error("not every key was done once")
			}
		})
	}
}

// The first run found the key new and its COMMIT never arrived; before it is asked about, another
// attempt does the work.
func TestTwinsAnswerIsReplay(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	r := newRequest()
	twin := again(r)
	db := &commits{db: d.write, by: []func(context.Context, pgx.Tx) error{func(ctx context.Context, tx pgx.Tx) error {
		err := lostRequest(ctx, tx)
		until(t, "the server has rolled back", func() bool { return d.run(t, twin).State != idempotency.InProgress })
		return err
	}}}

	a, err := idempotency.Run(t.Context(), db, r, retention, work(r))
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, a, idempotency.Replay)
	if n := d.effects(t, r); n != 1 || a.RequestID != twin.RequestID {
		t.Errorf("worked %d times; answered by %s, want the twin %s", n, a.RequestID, twin.RequestID)
	}
}

func TestRefusedCommitStoresNothing(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	mustExec(t, d.owner, `CREATE TABLE parents (id int PRIMARY KEY);
		CREATE TABLE children (parent int REFERENCES parents DEFERRABLE INITIALLY DEFERRED); GRANT INSERT ON children TO api_write`)
	r := newRequest()
	db := &commits{db: d.write}
	_, err := idempotency.Run(t.Context(), db, r, retention, func(ctx context.Context, tx pgx.Tx) (idempotency.Response, error) {
		if _, err := tx.Exec(ctx, `INSERT INTO children VALUES (1)`); err != nil {
			return idempotency.Response{}, err
		}
		return work(r)(ctx, tx)
	})
	if code(err) != "23503" || errors.Is(err, idempotency.ErrOutcomeUnknown) || db.started != 1 {
		t.Errorf("%d transactions, %v", db.started, err)
	}
	wantState(t, d.peek(t, r), idempotency.New)
	if n := d.effects(t, r); n != 0 {
		t.Errorf("worked %d times", n)
	}
}

func TestCommitAnsweredByRollback(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	r := newRequest()
	db := &commits{db: d.write, by: []func(context.Context, pgx.Tx) error{func(ctx context.Context, tx pgx.Tx) error {
		_, _ = tx.Exec(ctx, `SELECT 1/0`)
		return tx.Commit(ctx)
	}}}
	_, err := idempotency.Run(t.Context(), db, r, retention, work(r))
	if !errors.Is(err, pgx.ErrTxCommitRollback) || errors.Is(err, idempotency.ErrOutcomeUnknown) || db.started != 1 {
		t.Errorf("%d transactions, %v", db.started, err)
	}
	wantState(t, d.run(t, again(r)), idempotency.New)
}

func TestShutdownDuringCommit(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	r := newRequest()
	db := &commits{db: d.write, by: []func(context.Context, pgx.Tx) error{func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
		if code(err) != "57P01" {
			t.Errorf("want admin_shutdown, got %v", err)
		}
		return err
	}}}
	a, err := idempotency.Run(t.Context(), db, r, retention, work(r))
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, a, idempotency.New)
	if n := d.effects(t, r); n != 1 {
		t.Errorf("worked %d times", n)
	}
}
