package invariant

import (
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"
)

// event is what a record says about itself. A field is nil if the record lacks it or does not
// write it as a CloudEvent does; malformed then says why.
type event struct {
	id        *[16]byte
	kind      *string
	version   *int64
	createdAt *time.Time
	tenant    *string
	malformed *string
}

func readEvent(record *kgo.Record) (e event) {
	wrong := func(what string) {
		if e.malformed == nil {
			e.malformed = &what
		}
	}

	// Keep reading after a defect: the rest is still compared, and the first defect is reported.
	var subject string
	seen := map[string]bool{}
	for _, h := range record.Headers {
		name, is := strings.CutPrefix(h.Key, "ce_")
		if !is {
			continue
		}

		// Consumers may read either one of two headers with the same name.
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
		case "tenantid":
			e.tenant = &value
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

// text replaces the bytes of b that a text column does not accept. No row of the outbox has such
// bytes, so the record counts as changed.
func text(b []byte) string {
	return strings.ReplaceAll(strings.ToValidUTF8(string(b), "\uFFFD"), "\x00", "\uFFFD")
}
