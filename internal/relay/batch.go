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

// Message is an event on its way to the broker. Payload and Headers are valid until Publish
// returns.
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

// batch is what one read found behind a position. The next read reuses its memory: at 100,000
// events a second the allocator would otherwise take much of a relay's time.
type batch struct {
	from, next Position // next is behind the batch
	snapshot   string   // that it was read in
	timeline   int64    // of the server that it was read on
	found      []Message
	n          int   // how many of found are the batch; one more shows where it was cut
	err        error // of the read

	bytes    []byte            // payloads and headers
	ids      []byte            // aggregate ids
	versions []int64           // aggregate versions, 0 for none
	parts    []part            // of each message
	names    map[string]string // aggregate and event types seen so far
}

// part says where the bytes of a message end.
type part struct {
	payload, headers, id int
	versioned            bool
}

const (
	readTimeout = 10 * time.Second    // the connection may be dead
	longTimeout = 10 * time.Minute    // of a read after a long absence
	maxBytes    = 8 << 20             // of a batch: large events must not fill the memory
	maxNames    = 1_000               // kept for the next batch
	year2000    = 946_684_800_000_000 // Postgres' epoch, in microseconds of Unix time
)

func (b *batch) messages() []Message { return b.found[:b.n] }

// upTo returns the position behind the first n messages of the batch.
func (b *batch) upTo(n int) Position { return advance(b.from, b.found, n, b.snapshot) }

// read fills b with up to limit messages behind p. If nothing is found, the position stays the
// same, unless a run of chunks ends. The first read after a long absence goes through the index
// entries of all that was written meanwhile, 0.1 s for a million, so a read that takes too long is
// given more time.
func (b *batch) read(
	ctx context.Context, db *pgxpool.Pool, s statements, limit int, p Position,
) error {
	query, args := s.behind(p)
	err := b.query(ctx, db, readTimeout, limit, query, args...)
	if tooLong(ctx, err) {
		err = b.query(ctx, db, longTimeout, limit, query, args...)
	}
	if err != nil {
		return fmt.Errorf("read outbox: %w", err)
	}

	b.from = p
	b.next = b.upTo(b.n)
	return nil
}

// tooLong reports whether a read ran into its connection's statement_timeout, or into ours.
func tooLong(ctx context.Context, err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == "57014" ||
		errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
}

// A read's snapshot must be older than its plan. With READ COMMITTED a statement is planned first:
// when it is held up in between, its snapshot shows events of a partition attached meanwhile, which
// the plan does not read.
const beginRead = `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`

// A long read may take longer than its connection allows. A running transaction_timeout (Postgres
// 17) can be switched off, but not extended.
const allowLong = `
SELECT set_config(name, CASE name WHEN 'statement_timeout' THEN $1 ELSE '0' END, true)
FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout')`

// query fills b from a statement that returns its snapshot and the columns of a message. It is one
// round trip.
func (b *batch) query(
	ctx context.Context, db *pgxpool.Pool, timeout time.Duration, limit int,
	sql string, args ...any,
) error {
	ctx, leave := context.WithTimeout(ctx, timeout)
	defer leave()

	// BEGIN, the statement and COMMIT go out together.
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

	// One row more than the batch tells where it was cut.
	b.n = 0
	b.found, b.parts, b.versions = b.found[:0], b.parts[:0], b.versions[:0]
	b.bytes, b.ids = b.bytes[:0], b.ids[:0]
	for len(b.found) == b.n && rows.Next() {
		if err := b.add(rows.RawValues()); err != nil {
			return err
		}
		if b.n == 0 || b.n < limit && len(b.bytes) <= maxBytes {
			b.n++
		}
	}

	b.slice()

	// The unread rest may be gigabytes, which Close would wait for: better a new connection.
	if b.n < len(b.found) && len(b.bytes) > maxBytes {
		leave()
		return nil
	}
	if rows.Close(); rows.Err() != nil {
		return rows.Err()
	}

	return results.Close()
}

// add keeps a row, which comes in Postgres' binary format. Memory that grows moves, so slice cuts
// it at the end.
func (b *batch) add(row [][]byte) error {
	if len(b.found) == 0 {
		b.snapshot, b.timeline = string(row[0]), int64(binary.BigEndian.Uint64(row[1]))
	}

	row = row[1:]
	version := row[5]
	if len(row[1]) != 8 || len(row[2]) != 16 || len(version)%8 != 0 || len(row[9]) != 8 {
		return errors.New("a row does not have the columns that the statement asks for")
	}

	n := int64(0)
	if version != nil {
		n = int64(binary.BigEndian.Uint64(version))
	}

	b.versions = append(b.versions, n)

	b.bytes = append(b.bytes, row[7]...)
	payload := len(b.bytes)
	b.bytes = append(b.bytes, row[8]...)
	b.ids = append(b.ids, row[4]...)
	b.parts = append(b.parts, part{payload, len(b.bytes), len(b.ids), version != nil})

	b.found = append(b.found, Message{
		ID:            int64(binary.BigEndian.Uint64(row[1])),
		EventID:       uuid.UUID(row[2]),
		AggregateType: b.name(row[3]),
		Type:          b.name(row[6]),
		CreatedAt:     time.UnixMicro(year2000 + int64(binary.BigEndian.Uint64(row[9]))).UTC(),
	})
	return nil
}

// slice gives each message its part of the batch's memory.
func (b *batch) slice() {
	ids, last := string(b.ids), part{}
	for i, p := range b.parts {
		m := &b.found[i]
		m.Payload = b.bytes[last.headers:p.payload:p.payload]
		m.Headers = b.bytes[p.payload:p.headers:p.headers]
		m.AggregateID = ids[last.id:p.id]
		if p.versioned {
			m.AggregateVersion = &b.versions[i]
		}
		last = p
	}
}

// name returns text as a string, which all messages with the same text share.
func (b *batch) name(text []byte) string {
	if s, known := b.names[string(text)]; known {
		return s
	}
	if b.names == nil || len(b.names) == maxNames {
		b.names = map[string]string{}
	}

	s := string(text)
	b.names[s] = s
	return s
}
