package fakepsp

import (
	"encoding/json"
	"net/http"
)

// The types of errors.
const (
	cardError           = "card_error"
	invalidRequest      = "invalid_request_error"
	authenticationError = "authentication_error"
	idempotencyError    = "idempotency_error"
	rateLimitError      = "rate_limit_error"
	apiError            = "api_error"
)

// problem is an answer that leaves nothing in the books.
type problem struct {
	status        int
	typ           string
	code, message string
}

func invalid(code, message string) *problem {
	return &problem{http.StatusBadRequest, invalidRequest, code, message}
}

var (
	unauthorized = &problem{http.StatusUnauthorized, authenticationError, "api_key_invalid",
		"Authorization must be Bearer and the API key"}
	keyInUse = &problem{http.StatusConflict, idempotencyError, "key_in_use",
		"a request with this Idempotency-Key is in progress"}
	keyReused = &problem{http.StatusUnprocessableEntity, idempotencyError, "key_reused",
		"this Idempotency-Key was used for another request"}
	tooMany = &problem{http.StatusTooManyRequests, rateLimitError, "rate_limited",
		"too many requests"}
	internal = &problem{http.StatusInternalServerError, apiError, "internal_error",
		"something went wrong; the request may or may not have been executed"}
	unavailable = &problem{http.StatusServiceUnavailable, apiError, "unavailable",
		"the service is down"}
)

// errorBody is the body of everything that did not succeed.
type errorBody struct {
	Error struct {
		Type    string `json:"type"`
		Code    string `json:"code"`
		Message string `json:"message"`
		Object  any    `json:"object,omitempty"` // what was declined
	} `json:"error"`
}

func errorOf(typ, code, message string, object any) (b errorBody) {
	b.Error.Type, b.Error.Code, b.Error.Message, b.Error.Object = typ, code, message, object
	return b
}

func (p *problem) write(w http.ResponseWriter) {
	if p.status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, p.status, errorOf(p.typ, p.code, p.message, nil))
}

// write answers with what is in the books. The same record gives the same bytes.
func (r record) write(w http.ResponseWriter) {
	switch {
	case r.Charge != nil && r.Charge.Status == declined:
		writeJSON(w, http.StatusPaymentRequired,
			errorOf(cardError, "card_declined", "the card was declined", r.Charge))
	case r.Charge != nil:
		writeJSON(w, http.StatusCreated, r.Charge)
	case r.Refund.Status == declined:
		writeJSON(w, http.StatusPaymentRequired,
			errorOf(cardError, "card_declined", "the refund was declined", r.Refund))
	default:
		writeJSON(w, http.StatusCreated, r.Refund)
	}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(mustJSON(v))
}

func mustJSON(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic("fakepsp: " + err.Error()) // a type that JSON cannot show: a mistake of this package
	}
	return text
}
