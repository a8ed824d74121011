package httpapi

import (
	"strconv"

	"github.com/google/uuid"
)

// A cursor is where a page ended: the id of its last payment, the number of its last entry, or the
// version that its last refund left the payment with. It grants nothing: each query checks the
// tenant and the filters itself, so a cursor that was made up shows rows that the client may list
// anyway.

var errCursor = refuse("invalid-cursor",
	"Use next_cursor as you received it, or start the list again without a cursor.")

// paymentCursor returns the payment after which a list continues.
func paymentCursor(cursor string) (uuid.UUID, error) {
	id, ok := canonicalID(cursor)
	if !ok || id.Version() != 7 {
		return uuid.Nil, errCursor
	}
	return id, nil
}

// numberCursor returns the number of the entry, or the version of the refund, after which a list
// continues.
func numberCursor(cursor string) (int64, error) {
	// In one spelling only: not 07, not +7.
	number, err := strconv.ParseInt(cursor, 10, 64)
	if err != nil || number < 1 || strconv.FormatInt(number, 10) != cursor {
		return 0, errCursor
	}
	return number, nil
}
