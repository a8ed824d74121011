package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/testenv"
)

// tenants are those of the aggregates. One has none.
var tenants = []uuid.UUID{uuid.New(), uuid.New(), uuid.Nil}

func events(n int) (es []outbox.Event) {
	for i := range n {
		es = append(es, outbox.Event{
			ID: uuid.New(), AggregateType: "things", AggregateID: fmt.Sprint(i % 3), AggregateVersion: int64(i/3 + 1), Type: "thing.changed",
			Payload: []byte{byte(i), 0, 0xff}, TenantID: tenants[i%3],
		})
	}
	return es
}

// counter counts statements.
type counter struct{ n atomic.Int32 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}
func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestAppendKeepsOrderInOneStatement(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	owner := db.Pool(t, "")
	config, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	var statements counter
	config.Tracer = &statements
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, n := range []int{0, 1, 2, 500} {
		es := events(n)
		err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			statements.n.Store(0)
			err := outbox.Append(t.Context(), tx, es)
			if got := int(statements.n.Load()); got != min(n, 1) {
				t.Errorf("%d statements for %d events", got, n)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		rows, err := owner.Query(t.Context(), `SELECT event_id, coalesce(tenant_id, '00000000-0000-0000-0000-000000000000'), aggregate_type, aggregate_id, aggregate_version, event_type, payload
			FROM outbox_events ORDER BY id DESC LIMIT $1`, n)
		if err != nil {
			t.Fatal(err)
		}
		got, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e outbox.Event, err error) {
			return e, row.Scan(&e.ID, &e.TenantID, &e.AggregateType, &e.AggregateID, &e.AggregateVersion, &e.Type, &e.Payload)
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Reverse(got)
		if fmt.Sprint(got) != fmt.Sprint(es) {
			t.Errorf("%d events came back otherwise, or in another order", n)
		}
	}
}
