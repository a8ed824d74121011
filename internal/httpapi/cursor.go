package httpapi

import (
	"encoding/base64"
	"encoding/binary"
	"strings"

	"github.com/google/uuid"
)

// A cursor is the position at which a page ended, in base64: the id of its last payment, or the
// number of its last entry. It is opaque to clients and grants nothing: each query checks the
// tenant and the filters itself, so a cursor that was made up shows rows that the client may list
// anyway.

var errCursor = refuse("invalid-cursor",
	"Use next_cursor as you received it, or start the list again without a cursor.")

func afterPayment(id uuid.UUID) string { return base64.RawURLEncoding.EncodeToString(id[:]) }

func afterEntry(number int64) string {
	position := binary.BigEndian.AppendUint64(nil, uint64(number))
	return base64.RawURLEncoding.EncodeToString(position)
}

// paymentCursor returns the payment after which a list continues.
func paymentCursor(cursor string) (uuid.UUID, error) {
	position, err := decodeCursor(cursor)
	if err != nil {
		return uuid.Nil, err
	}

	id, err := uuid.FromBytes(position)
	if err != nil || id.Version() != 7 {
		return uuid.Nil, errCursor
	}
	return id, nil
}

// entryCursor returns the number of the entry after which a list continues.
func entryCursor(cursor string) (int64, error) {
	position, err := decodeCursor(cursor)
	if err != nil {
		return 0, err
	}
	if len(position) != 8 {
		return 0, errCursor
	}

	number := int64(binary.BigEndian.Uint64(position))
	if number < 1 {
		return 0, errCursor
	}
	return number, nil
}

func decodeCursor(cursor string) ([]byte, error) {
	position, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || strings.ContainsAny(cursor, "\r\n") { // which the decoder ignores
		return nil, errCursor
	}
	return position, nil
}
