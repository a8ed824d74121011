package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/program"
)

// archived is what one run of the command did.
type archived struct {
	Days     int   `json:"days"` // put into the archive
	Payments int64 `json:"payments"`
	Entries  int64 `json:"entries"`

	DeletedDays     int   `json:"deleted_days"`
	DeletedPayments int64 `json:"deleted_payments"`
	DeletedEntries  int64 `json:"deleted_entries"`
	KeptPayments    int64 `json:"kept_payments"` // refunded since they were put into the archive
}

// closedFor is how long ago a day must be over. What was authorized on it has expired, and its events
// have left the outbox, but for those of late refunds.
const closedFor = 31 * 24 * time.Hour

func (o operator) archive() *cobra.Command {
	c := &cobra.Command{
		Use:   "archive MONTH",
		Short: "Take old payments and ledger entries out of the database, day by day",
		Long: `Copies payments and ledger entries, with refunds and audit trail, into files: all days from the
oldest in the database to the end of MONTH. Each UTC day gets a folder in --to with a manifest of rows,
sums and hashes. What was written is read back and compared with the database before the day counts
as archived; then the opening of each account carries number and balance of its last archived entry,
and its history begins behind it. Nothing is deleted.

With --delete, the rows that the files hold are deleted, too, of these days and of those that an
earlier run left. The files are compared with their manifest before. A payment that was refunded
since it was copied stays. An archived payment is gone for clients: the API answers 404, also to a
refund of it.

Each database has a folder of its own. It can be stopped at any time, killed too, and repeated.`,
		Example: "  oncepay archive 2025-01 --to /mnt/archive\n" +
			"  oncepay archive 2025-01 --to /mnt/archive --delete",
		GroupID: asOperator,
	}

	var month time.Time
	var dir string
	var deletes bool
	program.Argument(c, &month, parseMonth)
	c.Flags().StringVar(&dir, "to", "", "the `FOLDER` of the archive")
	c.Flags().BoolVar(&deletes, "delete", false, "delete what the files hold")
	_ = c.MarkFlagRequired("to") // the flag is there

	c.RunE = func(c *cobra.Command, _ []string) error {
		if at, err := os.Stat(dir); err != nil || !at.IsDir() {
			return fmt.Errorf("--to %q is not a folder: make it first", dir)
		}
		db, err := o.open(c.Context())
		if err != nil {
			return err
		}
		defer db.Close()

		done, err := archiveAlone(c.Context(), db, dir, month.AddDate(0, 1, 0), deletes)
		if err != nil {
			return err
		}
		return program.Show(c, done, done.print)
	}
	return c
}

func parseMonth(s string) (time.Time, error) {
	t, err := time.Parse("2006-01", s)
	if err != nil {
		return t, errors.New("it must be a month such as 2026-03")
	}
	return t, nil
}

// The first day that is not archived. By the primary key of payments: no account has an entry that is
// older than its tenant's first payment.
const readFirstDay = `
SELECT coalesce((SELECT max(day) + 1 FROM archived_days),
    (SELECT min((p.processed_at AT TIME ZONE 'utc')::date) FROM tenants t, LATERAL (
        SELECT processed_at FROM payments WHERE tenant_id = t.id ORDER BY id LIMIT 1) p),
    $1::date), now()`

// lockArchive is held from before the first day is read until the last row is deleted. A tenant's move
// takes it too.
const lockArchive = `SELECT pg_try_advisory_lock(hashtext('oncepay archive'))`

const unlockArchive = `SELECT pg_advisory_unlock_all()`

// archiveAlone is archiveTo while no other run is at work. The lock goes with the connection that does
// all of the work: who has lost the one can commit nothing on the other.
func archiveAlone(
	ctx context.Context, db *pgxpool.Pool, dir string, until time.Time, deletes bool,
) (done archived, err error) {
	pooled, err := db.Acquire(ctx)
	if err != nil {
		return done, fmt.Errorf("connect to database: %w", err)
	}
	conn := pooled.Hijack()
	defer conn.Close(context.WithoutCancel(ctx))

	var alone bool
	if err := conn.QueryRow(ctx, lockArchive).Scan(&alone); err != nil {
		return done, fmt.Errorf("lock the archive: %w", err)
	}
	if !alone {
		return done, errors.New("another oncepay archive, or oncepay tenants move, runs: wait until it has ended")
	}
	// The server notices a closed connection some time later, and the next run may follow at once. If
	// this fails, the lock still goes with the connection.
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_, _ = conn.Exec(ctx, unlockArchive)
	}()

	return archiveTo(ctx, conn, dir, until, deletes)
}

// archiveTo archives all days before until.
func archiveTo(
	ctx context.Context, db *pgx.Conn, dir string, until time.Time, deletes bool,
) (done archived, err error) {
	var first, now time.Time
	if err := db.QueryRow(ctx, readFirstDay, until).Scan(&first, &now); err != nil {
		return done, fmt.Errorf("find the first day: %w", err)
	}
	if now.Sub(until) < closedFor {
		return done, fmt.Errorf("the month must have been over for %d days: archive an earlier one",
			closedFor/(24*time.Hour))
	}

	for day := first; day.Before(until); day = day.AddDate(0, 0, 1) {
		m, err := archiveDay(ctx, db, dir, day)
		if err != nil {
			return done, fmt.Errorf("archive %s: %w", day.Format(time.DateOnly), err)
		}
		done.Days++
		done.Payments += m.file(paymentsFile).Rows
		done.Entries += m.file(entriesFile).Rows
	}

	if deletes {
		err = done.deleteUntil(ctx, db, dir, until)
	}
	return done, err
}

const readUndeleted = `
SELECT day, manifest FROM archived_days WHERE deleted_at IS NULL AND day < $1 ORDER BY day`

const markDeleted = `
UPDATE archived_days SET deleted_at = now() WHERE day = $1`

func (done *archived) deleteUntil(
	ctx context.Context, db *pgx.Conn, dir string, until time.Time,
) error {
	rows, err := db.Query(ctx, readUndeleted, until)
	if err != nil {
		return fmt.Errorf("find what to delete: %w", err)
	}
	type recorded struct {
		Day      time.Time
		Manifest []byte
	}
	days, err := pgx.CollectRows(rows, pgx.RowToStructByPos[recorded])
	if err != nil {
		return fmt.Errorf("find what to delete: %w", err)
	}

	for _, d := range days {
		folder := dayFolder(dir, d.Day)
		m, err := readManifest(folder, d.Manifest)
		if err != nil {
			return err
		}
		whole, err := m.verify(folder)
		if err != nil {
			return err
		}
		if err := done.deleteDay(ctx, db, folder, m, whole); err != nil {
			return fmt.Errorf("delete %s: %w", d.Day.Format(time.DateOnly), err)
		}

		// Crash point: all rows deleted, the day not marked. The next run finds none of them.
		if _, err := db.Exec(ctx, markDeleted, d.Day); err != nil {
			return fmt.Errorf("mark %s as deleted: %w", d.Day.Format(time.DateOnly), err)
		}
		done.DeletedDays++
	}
	return nil
}

func (done archived) print(w io.Writer) {
	program.Row(w, "archived", fmt.Sprintf("%d days, %d payments, %d entries",
		done.Days, done.Payments, done.Entries))
	program.Row(w, "deleted", fmt.Sprintf("%d days, %d payments, %d entries",
		done.DeletedDays, done.DeletedPayments, done.DeletedEntries))
	if done.KeptPayments > 0 {
		program.Row(w, "kept", fmt.Sprintf("%d payments, which were refunded since", done.KeptPayments))
	}
}
