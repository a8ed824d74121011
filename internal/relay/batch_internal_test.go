package relay

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/testenv"
)

// cloned returns messages whose bytes are their own.
func cloned(ms []Message) (own []Message) {
	for _, m := range ms {
		m.Payload, m.Headers = append([]byte{}, m.Payload...), bytes.Clone(m.Headers)
		own = append(own, m)
	}
	return own
}

// readAll reads from the beginning until nothing is left, in memory that each read takes over from the one before.
func readAll(t testing.TB, db *pgxpool.Pool, limit int) (found []Message, batches []int) {
	t.Helper()
	b, p := batch{}, Position{Seen: "3:3:"}
	for {
		if err := b.read(t.Context(), db, limit, p); err != nil {
			t.Fatal(err)
		}
		if b.n == 0 && b.next == p {
			return found, batches
		}
		for _, m := range b.messages() {
			_ = append(m.Payload, '!') // must not reach what is behind it
		}
		found, batches = append(found, cloned(b.messages())...), append(batches, b.n)
		p = b.next
	}
}

// byHand are headers as somebody may write them in SQL.
var byHand = []string{
	`{}`, `{"a": "b"}`, `{"traceparent":"00-1-2-01","x":""}`, `{"": "empty name"}`, `{"quoted \"name\"": "quoted \"value\""}`,
	`{"back\\slash": "\\"}`, `{"n": 12345678901234567890, "f": 1.50, "big": 1e400}`, `{"null": null, "yes": true, "no": false}`,
	`{"list": [1, "a", null], "object": {"b": {"c": "d"}}}`, `{"ü": "日本 😀", "escaped": "\u00fc\n\t"}`, `{"z": "last", "aa": "first", "b": 1}`,
	`{"html": "<a href='x'>&</a>", "n": 1}`, `{"comma": ", \": ", "brace": "}"}`, "  {\n  \"spaced\" :\t\"out\"  }", `{"twice": "no", "twice": "yes"}`,
}

func TestReadReturnsRowsUnchanged(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t).Pool(t, "")
	random := rand.New(rand.NewPCG(11, 12))
	insert := &pgx.Batch{}
	insert.Queue(`CREATE TABLE every_day PARTITION OF outbox_events DEFAULT`)
	for i := range 600 {
		payload, version := make([]byte, random.IntN(3)*random.IntN(400)), any(nil)
		for j := range payload {
			payload[j] = byte(random.Uint32())
		}
		if i%3 > 0 {
			version = int64(random.Uint64())
		}
		created := time.UnixMicro(random.Int64N(253_402_300_800_000_000+62_135_596_800_000_000) - 62_135_596_800_000_000) // the years 1 to 9999
		insert.Queue(`INSERT INTO outbox_events (created_at, aggregate_type, aggregate_id, aggregate_version, event_type, payload, headers) VALUES ($1, $2, $3, $4, $5, $6, $7::text::jsonb)`,
			created, fmt.Sprint("type ", random.IntN(2000)), strings.Repeat("ü'", random.IntN(5)), version, strings.Repeat("t", random.IntN(3)), payload, byHand[i%len(byHand)])
	}
	if err := db.SendBatch(t.Context(), insert).Close(); err != nil {
		t.Fatal(err)
	}
	rows, err := db.Query(t.Context(), `SELECT id, event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload, headers, created_at FROM outbox_events ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	want, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Message]) // by pgx, not by hand
	if err != nil {
		t.Fatal(err)
	}
	for i := range want {
		want[i].CreatedAt = want[i].CreatedAt.UTC()
	}
	for _, limit := range []int{1, 7, 599, 1000} {
		got, _ := readAll(t, db, limit)
		if !reflect.DeepEqual(want, got) { // cmp takes seconds for so many
			t.Fatalf("%d at a time (-pgx +batch):\n%.3000s", limit, cmp.Diff(want, got))
		}
	}
}

func TestReadEmptyPayloadIsNotNil(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t).Pool(t, "")
	if _, err := db.Exec(t.Context(), `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) VALUES ('', '', '', '')`); err != nil {
		t.Fatal(err)
	}
	var b batch
	if err := b.read(t.Context(), db, 10, Position{Seen: "3:3:"}); err != nil {
		t.Fatal(err)
	}
	if m := b.messages()[0]; m.Payload == nil || len(m.Payload) != 0 {
		t.Errorf("payload %v", m.Payload)
	}
}

// large inserts events of so many mebibytes each.
func large(t testing.TB, db interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
}, mebibytes ...int) {
	t.Helper()
	if _, err := db.Exec(t.Context(), `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'things', 'a', 'thing.changed', convert_to(repeat('x', n << 20) || i, 'UTF8') FROM unnest($1::int[]) WITH ORDINALITY t(n, i) ORDER BY i`, mebibytes); err != nil {
		t.Fatal(err)
	}
}

func idsIn(t testing.TB, db *pgxpool.Pool) []int64 {
	t.Helper()
	rows, err := db.Query(t.Context(), `SELECT id FROM outbox_events ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func TestLargeEventsSplitBatches(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t).Pool(t, "")
	large(t, db, 0, 3, 3, 3, 0, 0, 20, 20, 1, 0, 7, 1, 0, 0, 9, 0)
	found, batches := readAll(t, db, 1000)
	if diff := cmp.Diff(idsIn(t, db), ids(found)); diff != "" {
		t.Errorf("ids (-written +read):\n%s", diff)
	}
	for i, m := range found {
		if end := fmt.Sprint(i + 1); !bytes.HasSuffix(m.Payload, []byte("x"+end)) && string(m.Payload) != end {
			t.Errorf("event %d ends in %q", i+1, m.Payload[max(0, len(m.Payload)-5):])
		}
	}
	// 8 MiB are the most, but for one event that is larger alone.
	if diff := cmp.Diff([]int{3, 3, 1, 1, 2, 1, 3, 1, 1}, batches); diff != "" {
		t.Errorf("sizes of the batches (-want +got):\n%s", diff)
	}
}

func TestStragglersCutByBytesAreNotLost(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t).Pool(t, "")
	late, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer late.Rollback(t.Context())
	large(t, late, 3, 3, 3, 3, 3) // their ids are lower than those of
	large(t, db, 0, 0)
	p, got := Position{Seen: "3:3:"}, []int64(nil)
	for range 8 {
		var b batch
		if err := b.read(t.Context(), db, 100, p); err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 { // from now on they are stragglers
			if err := late.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			large(t, db, 3)
		}
		got, p = append(got, ids(b.messages())...), b.next
	}
	all := idsIn(t, db)
	if diff := cmp.Diff(append(all[5:7:7], append(all[:5:5], all[7])...), got); diff != "" {
		t.Errorf("ids (-want +got):\n%s", diff)
	}
}

// counted counts what comes from Postgres.
type counted struct {
	net.Conn
	bytes *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

// A backlog of large events would otherwise be fetched as a whole for each batch of it, if that comes to an end in time at all.
func TestFullBatchDoesNotFetchTheRest(t *testing.T) {
	t.Parallel()
	d := testenv.Database(t)
	large(t, d.Pool(t, ""), slices.Repeat([]int{1}, 100)...)
	config, err := pgxpool.ParseConfig(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	var fetched atomic.Int64
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		return counted{c, &fetched}, err
	}
	db, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for range 3 { // each on a new connection
		var b batch
		if err := b.read(t.Context(), db, 1000, Position{Seen: "3:3:"}); err != nil || b.n != 7 {
			t.Fatalf("%d events of a mebibyte and more in a batch, %v", b.n, err)
		}
	}
	if n := fetched.Load() >> 20; n > 3*40 { // what was on its way is counted, too
		t.Errorf("%d MiB were fetched for three batches of 8", n)
	}
}

func BenchmarkReading(b *testing.B) {
	const events = 1000
	db := testenv.Database(b).Pool(b, "")
	if _, err := db.Exec(b.Context(), `INSERT INTO outbox_events (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload, headers)
		SELECT gen_random_uuid(), 'payments', gen_random_uuid(), 1, 'payment.completed', convert_to(repeat('x', 300), 'UTF8'),
		'{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}' FROM generate_series(1, $1::int)`, events); err != nil {
		b.Fatal(err)
	}
	var found batch
	b.ReportAllocs()
	for b.Loop() {
		if err := found.read(b.Context(), db, events, Position{Seen: "3:3:"}); err != nil || found.n != events {
			b.Fatal(found.n, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*events), "ns/event")
}
