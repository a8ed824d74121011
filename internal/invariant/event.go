package invariant

import (
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"
)

// event is what a record says of itself. What it does not say, or not as a CloudEvent does, is nil and malformed says why.
type event struct {
	id        *[16]byte
	kind      *string
	version   *int64
	createdAt *time.Time
	malformed *string
}

func readEvent(record *kgo.Record) (e event) {
	wrong := func(what string) {
		if e.malformed == nil {
			e.malformed = &what
		}
	}
	var subject string
	seen := map[string]bool{}
	for _, h := range record.Headers {
		name, is := strings.CutPrefix(h.Key, "ce_")
		if !is {
			continue
		}
		if seen[name] {
			wrong("header " + h.Key + " is there twice")
		}
		seen[name] = true
		value := text(h.Value)
		var err error
		switch name {
		case "id":
			var id uuid.UUID
			if id, err = uuid.Parse(value); err == nil && id.String() == value {
				e.id = (*[16]byte)(&id)
			}
		case "type":
			e.kind = &value
		case "subject":
			subject = value
		case "sequence":
			var version int64
			if version, err = strconv.ParseInt(value, 10, 64); err == nil {
				e.version = &version
			}
		case "time":
			var at time.Time
			if at, err = time.Parse(time.RFC3339Nano, value); err == nil {
				e.createdAt = &at
			}
		}
		if err != nil {
			wrong("header " + h.Key + " cannot be read")
		}
	}
	if e.id == nil {
		wrong("no id")
	}
	if subject != text(record.Key) {
		wrong("key and subject differ")
	}
	return e
}

// text is what of b a text column takes. What it does not take is in no row of the outbox, so the record is a changed one.
func text(b []byte) string {
	return strings.ReplaceAll(strings.ToValidUTF8(string(b), "\uFFFD"), "\x00", "\uFFFD")
}
