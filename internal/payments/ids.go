package payments

import (
	"crypto/rand"
	"encoding/binary"
	"time"

	"github.com/google/uuid"
)

// newID returns a UUIDv7 (RFC 9562 section 5.7) of the time at, to the millisecond; the rest is
// random. Ids sort by time, so a list by id needs no further index, and times translate to bounds
// of ids.
func newID(at time.Time) uuid.UUID {
	var id uuid.UUID
	_, _ = rand.Read(id[6:]) // never fails: the program would have crashed

	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(at.UnixMilli())) // the database clock is past 1970
	copy(id[:6], ms[2:])

	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return id
}
