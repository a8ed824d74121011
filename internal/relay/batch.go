package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Message is an event as it was read, on its way to the broker. Its bytes are its reader's: they are valid until Publish returns.
type Message struct {
	ID               int64 // the row's place in the outbox
	EventID          uuid.UUID
	AggregateType    string
	AggregateID      string
	AggregateVersion *int64 // nil: the writer keeps none
	Type             string
	Payload          []byte
	Headers          []byte // a JSON object, as it is in the row
	CreatedAt        time.Time
}

// batch is what one read found behind a position, and the memory that it lives in, which the next read takes over: at
// 100,000 events a second much of a relay's time would otherwise go to the allocator.
type batch struct {
	from, next Position // next is behind the batch
	snapshot   string   // the one it was read in
	found      []Message
	n          int   // how many of found, in this order, are the batch; one more says where it was cut
	err        error // the read failed

	bytes    []byte            // payloads and headers
	ids      []byte            // aggregate ids
	versions []int64           // aggregate versions, 0 for none
	parts    []part            // what of it belongs to which message
	names    map[string]string // aggregate and event types seen so far
}

type part struct {
	payload, headers, id int // where they end
	versioned            bool
}

const (
	readTimeout = 10 * time.Second // a connection may have died unseen
	longTimeout = 10 * time.Minute // of a read that has to go through what was written in a long absence
	mostBytes   = 8 << 20          // what is beyond waits for the next batch: a backlog of large events must not fill the memory
	mostNames   = 1_000
	year2000    = 946_684_800_000_000 // where Postgres counts from, in microseconds of Unix time
)

func (b *batch) messages() []Message { return b.found[:b.n] }

// upTo returns the position behind the first n messages of the batch.
func (b *batch) upTo(n int) Position { return advance(b.from, b.found, n, b.snapshot) }

// read fills b with what comes behind p, up to limit messages. An empty batch leaves the position as it is, unless it ended
// a run of chunks.
func (b *batch) read(ctx context.Context, db *pgxpool.Pool, s statements, limit int, p Position) error {
	return b.readWithin(ctx, readTimeout, db, s, limit, p)
}

// readWithin is read with a time limit. The first read after a long absence looks for stragglers in the index entries of all that was
// written meanwhile: 0.1 s for a million.
func (b *batch) readWithin(ctx context.Context, limit time.Duration, db *pgxpool.Pool, s statements, most int, p Position) error {
	query, args := s.behind(p)
	if err := b.query(ctx, db, limit, most, query, args...); err != nil {
		return fmt.Errorf("read outbox: %w", err)
	}
	b.from = p
	b.next = b.upTo(b.n)
	return nil
}

// tooLong says that a read ran into the statement_timeout of its connection, or of ours where that has none.
func tooLong(ctx context.Context, err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == "57014" || errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
}

// A read's snapshot has to be older than its plan. With READ COMMITTED a statement is planned and takes its snapshot afterwards: that of
// a read which was held up in between shows the events of a partition that was attached meanwhile, and the read itself passes them.
const beginRead = `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`

// What the connection allows is not enough for a long read. A transaction_timeout (Postgres 17) that runs already can be taken away, but not
// made longer.
const allowLong = `
SELECT set_config(name, CASE name WHEN 'statement_timeout' THEN $1 ELSE '0' END, true)
FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout')`

// query fills b with what a statement finds: snapshot, then the columns of a message. It is one round trip.
func (b *batch) query(ctx context.Context, db *pgxpool.Pool, timeout time.Duration, limit int, sql string, args ...any) error {
	ctx, leave := context.WithTimeout(ctx, timeout)
	defer leave()
	pipeline := &pgx.Batch{}
	pipeline.Queue(beginRead)
	if timeout > readTimeout {
		pipeline.Queue(allowLong, strconv.FormatInt(timeout.Milliseconds(), 10))
	}
	before := pipeline.Len()
	pipeline.Queue(sql, args...)
	pipeline.Queue(`COMMIT`)

	results := db.SendBatch(ctx, pipeline)
	defer results.Close()
	for range before {
		if _, err := results.Exec(); err != nil {
			return err
		}
	}
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	b.snapshot, b.n = "", 0
	b.found, b.bytes, b.ids, b.versions, b.parts = b.found[:0], b.bytes[:0], b.ids[:0], b.versions[:0], b.parts[:0]
	for len(b.found) == b.n && rows.Next() {
		if err := b.add(rows.RawValues()); err != nil {
			return err
		}
		if b.n == 0 || b.n < limit && len(b.bytes) <= mostBytes {
			b.n++
		}
	}
	b.point()
	if b.n < len(b.found) && len(b.bytes) > mostBytes {
		leave() // what was not read may be gigabytes, which Close would wait for: better a new connection
		return nil
	}
	if rows.Close(); rows.Err() != nil {
		return rows.Err()
	}
	return results.Close() // throws away what was not read, and says whether it all came
}

// add keeps a row, which comes in Postgres' binary format. Memory that grows moves: slices of it are cut by point.
func (b *batch) add(row [][]byte) error {
	if len(row[1]) != 8 || len(row[2]) != 16 || len(row[5])%8 != 0 || len(row[8]) < 2 || len(row[9]) != 8 {
		return errors.New("a row is not of the shape that the statement asks for")
	}
	if b.snapshot == "" {
		b.snapshot = string(row[0])
	}
	version := int64(0)
	if row[5] != nil {
		version = int64(binary.BigEndian.Uint64(row[5]))
	}
	b.versions = append(b.versions, version)
	b.bytes = append(b.bytes, row[7]...)
	payload := len(b.bytes)
	b.bytes = append(b.bytes, row[8]...)
	b.ids = append(b.ids, row[4]...)
	b.parts = append(b.parts, part{payload: payload, headers: len(b.bytes), id: len(b.ids), versioned: row[5] != nil})
	b.found = append(b.found, Message{
		ID:            int64(binary.BigEndian.Uint64(row[1])),
		EventID:       uuid.UUID(row[2]),
		AggregateType: b.name(row[3]),
		Type:          b.name(row[6]),
		CreatedAt:     time.UnixMicro(year2000 + int64(binary.BigEndian.Uint64(row[9]))).UTC(),
	})
	return nil
}

func (b *batch) point() {
	ids, last := string(b.ids), part{}
	for i, p := range b.parts {
		m := &b.found[i]
		m.Payload, m.Headers, m.AggregateID = b.bytes[last.headers:p.payload:p.payload], b.bytes[p.payload:p.headers:p.headers], ids[last.id:p.id]
		if p.versioned {
			m.AggregateVersion = &b.versions[i]
		}
		last = p
	}
}

// name returns text as a string, and one of them for all messages that share it.
func (b *batch) name(text []byte) string {
	if s, known := b.names[string(text)]; known {
		return s
	}
	if b.names == nil || len(b.names) == mostNames {
		b.names = map[string]string{}
	}
	s := string(text)
	b.names[s] = s
	return s
}
