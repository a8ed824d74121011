package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/migrations"
)

// operator has the commands that work in the database, as its owner.
type operator struct{ getenv func(string) string }

// connectTimeout leaves room in the five seconds within which a wrong address must be reported.
const connectTimeout = 3 * time.Second

// settings are the parameters of every session of the owner.
var settings = map[string]string{
	// Fail for a login that may not see every row, rather than show it only those it sees.
	"row_security": "off",
	// Statements over all partitions look expensive to the planner, which would compile them for
	// seconds to run them for a millisecond.
	"jit": "off",
	// Large tables are read by an index, as in internal/postgres. Otherwise the planner, which
	// guesses how many transactions a snapshot lists, joins them to the whole outbox.
	"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off",
	// A host that vanished must not keep its locks for two hours.
	"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3",
}

// open opens the database as its owner and checks that its schema is the one this program knows.
// The caller closes the pool. No statement has a time limit: a person waits for it, and can stop.
func (o operator) open(ctx context.Context) (*pgxpool.Pool, error) {
	cfg, err := config.LoadOwner(o.getenv)
	if err != nil {
		return nil, err
	}
	return openOwned(ctx, "DATABASE_URL", cfg.DatabaseURL)
}

// openOwned connects to the database of a variable, whose schema must be this program's.
func openOwned(ctx context.Context, variable, url string) (*pgxpool.Pool, error) {
	postgres.WarnPlainText(ctx, slog.Default(), variable, url)

	// A pool, although most commands need one connection: the outcome of a COMMIT whose reply was
	// lost is looked up on another.
	database, err := pgxpool.ParseConfig(url)
	if err != nil {
		// Not the driver's text: it hides passwords on a best-effort basis only.
		return nil, fmt.Errorf("connect to database: the driver cannot read %s", variable)
	}
	maps.Copy(database.ConnConfig.RuntimeParams, settings)
	database.AfterConnect = readTimesInUTC

	db, err := pgxpool.NewWithConfig(ctx, database)
	if err != nil {
		return nil, fmt.Errorf("connect to database: %w", err)
	}

	// The time limit is for connecting only, not for what the connections are used for.
	dialCtx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := db.Ping(dialCtx); err != nil {
		db.Close()
		return nil, fmt.Errorf("connect to database: %w", err)
	}

	if err := migrations.Check(ctx, db); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// readTimesInUTC is for JSON, which would show times where this runs.
func readTimesInUTC(_ context.Context, conn *pgx.Conn) error {
	conn.TypeMap().RegisterType(&pgtype.Type{
		Name: "timestamptz", OID: pgtype.TimestamptzOID,
		Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC},
	})
	return nil
}

// How a command uses the database.
var (
	changes = pgx.TxOptions{}
	looks   = pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly} // one snapshot
)

// runs returns what runs a command: do in one transaction, then show what it returned.
func runs[T any](
	o operator, how pgx.TxOptions,
	do func(context.Context, pgx.Tx) (T, error), text func(io.Writer, T),
) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, _ []string) error {
		db, err := o.open(c.Context())
		if err != nil {
			return err
		}
		defer db.Close()

		var result T
		err = pgx.BeginTxFunc(c.Context(), db, how, func(tx pgx.Tx) (err error) {
			result, err = do(c.Context(), tx)
			return err
		})
		if err != nil {
			return err
		}
		return program.Show(c, result, func(w io.Writer) { text(w, result) })
	}
}
