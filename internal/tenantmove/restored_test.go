package tenantmove_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/tenantmove"
	"github.com/oncepay/oncepay/internal/testenv"
)

// The source was restored to within the move: there the tenant is still leaving, and the target has
// served it since. It may not stay, and docs/scaling.md says what to do.
func TestARestoredSourceIsToldThatTheTenantHasLeft(t *testing.T) {
	t.Parallel()
	source, target := newCluster(t), newCluster(t)
	tenant := source.fill("acme")
	source.passed()
	r, err := tenantmove.Move(t.Context(), source.Pool, target.Pool, tenant, patience)
	if err != nil {
		t.Fatal(err)
	}
	source.exec(`UPDATE tenant_moves SET state = 'leaving'`)
	source.exec(`UPDATE schema_files SET oldest_program = 1`)

	_, err = tenantmove.Move(t.Context(), source.Pool, target.Pool, tenant, patience)
	if !errors.Is(err, tenantmove.ErrRefused) || !strings.Contains(err.Error(), "if this database was restored") {
		t.Errorf("it moves again: %v", err)
	}

	err = tenantmove.Stay(t.Context(), source.Pool, target.Pool, tenant)
	if !errors.Is(err, tenantmove.ErrRefused) || !strings.Contains(err.Error(), "the target has the tenant") {
		t.Errorf("it stays in two clusters: %v", err)
	}

	page, err := os.ReadFile("../../docs/scaling.md")
	if err != nil {
		t.Fatal(err)
	}
	const begins = "INSERT INTO tenant_moves"
	_, block, _ := strings.Cut(string(page), "\n    "+begins)
	block, _, _ = strings.Cut(block, "\n\n")
	source.exec(begins+strings.ReplaceAll(block, "TARGET", r.Target), pgx.QueryExecModeSimpleProtocol)

	if got := source.lines(`SELECT state || ' ' || target FROM tenant_moves`); got != "left "+r.Target {
		t.Errorf("it is noted as %q", got)
	}
	if got := source.lines(`SELECT DISTINCT (oldest_program = version)::text FROM schema_files WHERE name LIKE '%tenant_moves%'`); got != "true" {
		t.Error("a program that knows nothing of moves may start")
	}
	if err := tenantmove.Stay(t.Context(), source.Pool, target.Pool, tenant); !errors.Is(err, tenantmove.ErrRefused) {
		t.Errorf("it stays: %v", err)
	}
	if again, err := tenantmove.Move(t.Context(), source.Pool, target.Pool, tenant, patience); err != nil || len(again.Rows) > 0 {
		t.Errorf("the move is not finished: %+v, %v", again, err)
	}
}

// The target was restored to before the move, or the source was told too early that the tenant has
// left: nobody serves it. What the source holds of it open ends once it stays.
func TestATenantThatIsNowhereMayStay(t *testing.T) {
	t.Parallel()
	source, target, other := newCluster(t), newCluster(t), newCluster(t)
	tenant := source.fill("acme")
	source.passed()
	source.exec(`INSERT INTO tenant_moves (tenant_id, state, target) VALUES ($1, 'left', $2)`,
		tenant, target.lines(`SELECT system_identifier || '/' || current_database() FROM pg_control_system()`))
	source.exec(`UPDATE psp_operations SET state = 'unknown', ended_at = NULL`)

	var err error
	for range 5 { // the machine may pause for longer than that
		_, err = tenantmove.Move(t.Context(), source.Pool, target.Pool, tenant, time.Second)
		if err == nil || strings.Contains(err.Error(), "let it stay") {
			break
		}
	}
	if !errors.Is(err, tenantmove.ErrBusy) || !strings.Contains(err.Error(), "let it stay, then move it again") {
		t.Errorf("it moves: %v", err)
	}

	err = tenantmove.Stay(t.Context(), source.Pool, other.Pool, tenant)
	if !errors.Is(err, tenantmove.ErrRefused) || !strings.Contains(err.Error(), "and this target is") {
		t.Errorf("another target was asked: %v", err)
	}
	err = tenantmove.StayWithoutTarget(t.Context(), source.Pool, "1/other", tenant)
	if !errors.Is(err, tenantmove.ErrRefused) {
		t.Errorf("another target is lost: %v", err)
	}
	if got := source.lines(`SELECT state FROM tenant_moves`); got != "left" {
		t.Errorf("it is noted as %q", got)
	}

	if err := tenantmove.Stay(t.Context(), source.Pool, target.Pool, tenant); err != nil {
		t.Fatal(err)
	}
	if got := source.lines(`SELECT state FROM tenant_moves`); got != "" {
		t.Errorf("it stays, but is noted as %q", got)
	}
	if err := tenantmove.Stay(t.Context(), source.Pool, target.Pool, tenant); !errors.Is(err, tenantmove.ErrRefused) {
		t.Errorf("it stays twice: %v", err)
	}

	source.exec(`UPDATE psp_operations SET state = 'succeeded', ended_at = now()`)
	if _, err := tenantmove.Move(t.Context(), source.Pool, target.Pool, tenant, patience); err != nil {
		t.Error(err)
	}
}

// A failover took the note that the tenant has left. Whoever moves it elsewhere must look first at the
// target that has it.
func TestATenantThatLeavesCannotChangeItsTarget(t *testing.T) {
	t.Parallel()
	source, target, other := newCluster(t), newCluster(t), newCluster(t)
	tenant := source.fill("acme")
	source.passed()
	if _, err := tenantmove.Move(t.Context(), source.Pool, target.Pool, tenant, patience); err != nil {
		t.Fatal(err)
	}
	source.exec(`UPDATE tenant_moves SET state = 'leaving'`)

	_, err := tenantmove.Move(t.Context(), source.Pool, other.Pool, tenant, patience)
	if !errors.Is(err, tenantmove.ErrRefused) || !strings.Contains(err.Error(), "run oncepay tenants stay with that one first") {
		t.Errorf("it moves to a third cluster: %v", err)
	}
	if got := other.lines(`SELECT name FROM tenants`); got != "" {
		t.Errorf("the third cluster has %s", got)
	}
}

// A command that was frozen after its look at the target must not remove what another has noted since.
func TestFrozenStayRemovesNoOtherNote(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"another attempt": `UPDATE tenant_moves SET attempt = gen_random_uuid()`,
		"it has left":     `UPDATE tenant_moves SET state = 'left', attempt = gen_random_uuid()`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, target := newCluster(t), newCluster(t)
			tenant := source.fill("acme")
			source.exec(`INSERT INTO tenant_moves (tenant_id, target) VALUES ($1, $2)`,
				tenant, target.lines(`SELECT system_identifier || '/' || current_database() FROM pg_control_system()`))
			tx, err := source.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			if _, err := tx.Exec(t.Context(), change); err != nil {
				t.Fatal(err)
			}

			stays := make(chan error, 1)
			go func() { stays <- tenantmove.Stay(t.Context(), source.Pool, target.Pool, tenant) }()
			testenv.Eventually(t, patience, func() error {
				if source.lines(`SELECT 'x' FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == "" {
					return errors.New("it does not wait for the note")
				}
				return nil
			})
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}

			if err := <-stays; !errors.Is(err, tenantmove.ErrRefused) {
				t.Errorf("it stays: %v", err)
			}
			if n := source.lines(`SELECT 'x' FROM tenant_moves`); n != "x" {
				t.Error("the note is gone")
			}
		})
	}
}

// Stay removes the note that it has read and no later one, by its attempt.
func TestEachNoteHasItsOwnAttempt(t *testing.T) {
	t.Parallel()
	source, target := newCluster(t), newCluster(t)
	tenant := source.fill("acme")
	source.passed()
	source.exec(`CREATE TABLE noted (attempt uuid)`)
	source.exec(`CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN INSERT INTO noted VALUES (NEW.attempt); RETURN NULL; END $$`)
	source.exec(`CREATE TRIGGER note AFTER INSERT OR UPDATE ON tenant_moves FOR EACH ROW EXECUTE FUNCTION note()`)

	if _, err := tenantmove.Move(t.Context(), source.Pool, target.Pool, tenant, patience); err != nil {
		t.Fatal(err)
	}
	if got := source.lines(`SELECT count(*) || ' notes, ' || count(DISTINCT attempt) || ' attempts' FROM noted`); got != "2 notes, 2 attempts" {
		t.Error(got)
	}
}
