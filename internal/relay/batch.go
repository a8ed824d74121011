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

	room []byte // payloads and headers
	size int    // of what was found
}

const (
	readTimeout = 10 * time.Second    // the connection may be dead
	longTimeout = 10 * time.Minute    // of a read after a long absence
	maxBytes    = 8 << 20             // of a batch: large events must not fill the memory
	year2000    = 946_684_800_000_000 // Postgres' epoch, in microseconds of Unix time
)

func (b *batch) messages() []Message { return b.found[:b.n] }

// upTo returns the position behind the first n messages of the batch.
func (b *batch) upTo(n int) Position { return advance(b.from, b.found, n, b.snapshot) }

// read fills b with up to limit messages behind p. If nothing is found, the position stays the same,
// unless a run of chunks ends. The first read after a long absence goes through the index entries
// of all that was written meanwhile, 0.1 s for a million, so a read that takes too long is given
// more time.
func (b *batch) read(ctx context.Context, db *pgxpool.Pool, limit int, p Position) error {
	sql, args := behind(p, limit)
	err := b.query(ctx, db, readTimeout, limit, sql, args...)
	if tooLong(ctx, err) {
		err = b.query(ctx, db, longTimeout, limit, sql, args...)
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

// query fills b from a statement that returns its snapshot, its timeline and the columns of a
// message. It is one round trip.
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

	before := pipeline.Len() // the statements whose answers come first
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
	b.found, b.room, b.n, b.size = b.found[:0], b.room[:0], 0, 0
	for len(b.found) == b.n && rows.Next() {
		if err := b.add(rows.RawValues()); err != nil {
			return err
		}
		if b.n == 0 || b.n < limit && b.size <= maxBytes {
			b.n++
		}
	}

	// The unread rest may be gigabytes, which Close would wait for: better a new connection.
	if b.n < len(b.found) && b.size > maxBytes {
		leave()
		return nil
	}
	if rows.Close(); rows.Err() != nil {
		return rows.Err()
	}

	return results.Close()
}

// add keeps a row, which comes in Postgres' binary format. By hand it takes a fraction of the time
// of Scan.
func (b *batch) add(row [][]byte) error {
	id, kind, version, created := row[2], row[4], row[6], row[10]
	if len(id) != 8 || len(row[3]) != 16 || len(version)%8 != 0 || len(created) != 8 {
		return errors.New("a row does not have the columns that the statement asks for")
	}
	if len(b.found) == 0 {
		b.snapshot, b.timeline = string(row[0]), int64(binary.BigEndian.Uint64(row[1]))
	}

	// One string for the three texts: one allocation.
	var room [128]byte
	text := string(append(append(append(room[:0], kind...), row[5]...), row[7]...))
	rest := text[len(kind):]
	b.found = append(b.found, Message{
		ID:            int64(binary.BigEndian.Uint64(id)),
		EventID:       uuid.UUID(row[3]),
		AggregateType: text[:len(kind)],
		AggregateID:   rest[:len(row[5])],
		Type:          rest[len(row[5]):],
		Payload:       b.keep(row[8]),
		Headers:       b.keep(row[9]),
		CreatedAt:     time.UnixMicro(year2000 + int64(binary.BigEndian.Uint64(created))).UTC(),
	})
	if version != nil {
		n := int64(binary.BigEndian.Uint64(version))
		b.found[len(b.found)-1].AggregateVersion = &n
	}

	return nil
}

// keep copies what the next row overwrites. Memory that is full stays with the messages in it. The
// copy of an empty payload is not nil, which would be a tombstone.
func (b *batch) keep(p []byte) []byte {
	if cap(b.room)-len(b.room) <= len(p) {
		b.room = make([]byte, 0, max(len(p), 2*cap(b.room), 4<<10))
	}

	b.size += len(p)
	b.room = append(b.room, p...)
	return b.room[len(b.room)-len(p) : len(b.room) : len(b.room)]
}
