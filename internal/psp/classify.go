package psp

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/oncepay/oncepay/internal/payments"
)

// object is a charge or a refund as the provider writes it.
type object struct {
	ID       string `json:"id"`
	Object   string `json:"object"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	Status   string `json:"status"`
	Charge   string `json:"charge"`
	Metadata struct {
		OperationID string `json:"operation_id"`
	} `json:"metadata"`
}

// problem is the body of every answer that is not a success.
type problem struct {
	Error struct {
		Type    string  `json:"type"`
		Code    string  `json:"code"`
		Message string  `json:"message"`
		Object  *object `json:"object"`
	} `json:"error"`
}

// classify says what an answer to a charge or refund means. It believes nothing that it cannot read
// in full: a proxy on the way answers 400 and 404 too, and knows nothing of our charge.
func classify(op payments.Operation, status int, header http.Header, body []byte) Answer {
	if status == http.StatusOK || status == http.StatusCreated {
		var o object
		if err := json.Unmarshal(body, &o); err != nil {
			return unreadable(status, err.Error())
		}
		return classifyObject(op, o)
	}

	var p problem
	readable := json.Unmarshal(body, &p) == nil
	e := p.Error
	detail := oneLine(fmt.Sprintf("%d %s %s: %s", status, e.Type, e.Code, e.Message))
	after := retryAfter(header)

	switch {
	case status == http.StatusPaymentRequired && readable && e.Type == "card_error":
		a := Answer{Outcome: Declined, Detail: detail}
		if e.Object != nil {
			a.Entry = e.Object.entry()
		}
		return a

	case (status == http.StatusBadRequest || status == http.StatusNotFound) &&
		readable && e.Type == "invalid_request_error":
		return Answer{Outcome: Refused, Detail: detail}

	case status == http.StatusUnprocessableEntity && readable && e.Type == "idempotency_error":
		return Answer{Outcome: KeyReused, Detail: detail}

	case status == http.StatusConflict:
		return Answer{Outcome: InProgress, Detail: detail, RetryAfter: after}
	case status == http.StatusTooManyRequests:
		return Answer{Outcome: RateLimited, Detail: detail, RetryAfter: after}
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return Answer{Outcome: Unauthorized, Detail: detail}
	case status >= 500:
		return Answer{Outcome: ServerError, Detail: detail, RetryAfter: after}
	}
	return unreadable(status, detail)
}

// classifyFound says what the answer to a search by key means. Refused: nothing was executed.
func classifyFound(op payments.Operation, status int, header http.Header, body []byte) Answer {
	if status != http.StatusOK {
		// Only a list says that nothing was found.
		a := classify(op, status, header, body)
		switch a.Outcome {
		case Succeeded, Declined, Refused, Conflict, KeyReused:
			return unreadable(status, a.Detail)
		}
		return a
	}

	data, more, err := readList(op.Kind, body)
	switch {
	case err != nil:
		return unreadable(status, err.Error())
	case len(data) == 0 && more:
		return unreadable(status, "an empty page, and more to come")
	case len(data) > 1 || more:
		detail := fmt.Sprintf("%d objects have the key: it was executed more than once", len(data))
		return Answer{Outcome: Conflict, Entry: data[0].entry(), Detail: detail}
	case len(data) == 0:
		return Answer{Outcome: Refused, Detail: "nothing was executed under this key"}
	}
	return classifyObject(op, data[0])
}

func classifyObject(op payments.Operation, o object) Answer {
	if o.Object != objectOf(op.Kind) || o.ID == "" || o.Amount <= 0 || o.Currency == "" {
		return unreadable(http.StatusOK, "not a "+objectOf(op.Kind))
	}

	a := Answer{Entry: o.entry()}
	switch o.Status {
	case "succeeded":
		a.Outcome = Succeeded
	case "declined":
		a.Outcome = Declined
	default:
		return unreadable(http.StatusOK, "status "+o.Status)
	}

	// An answer to another request, say from a cache, or a search that did not look at our key.
	ours := o.Metadata.OperationID == "" || o.Metadata.OperationID == op.ID.String()
	asked := op.Kind == payments.Charge || o.Charge == op.ChargeReference
	if a.Entry.AmountMinor != op.AmountMinor || a.Entry.Currency != op.Currency || !asked || !ours {
		a.Outcome = Conflict
		a.Detail = oneLine(fmt.Sprintf("%s %s %d %s %s of operation %s, asked for %d %s %s",
			o.ID, o.Status, o.Amount, a.Entry.Currency, o.Charge, o.Metadata.OperationID,
			op.AmountMinor, op.Currency, op.ChargeReference))
	}
	return a
}

// readList reads a page of objects of one kind.
func readList(kind payments.OperationKind, body []byte) (data []object, more bool, err error) {
	var list struct {
		Object  string    `json:"object"`
		Data    *[]object `json:"data"`
		HasMore bool      `json:"has_more"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, false, err
	}
	if list.Object != "list" || list.Data == nil {
		return nil, false, fmt.Errorf("not a list")
	}

	for _, o := range *list.Data {
		if o.Object != objectOf(kind) || o.ID == "" {
			return nil, false, fmt.Errorf("not a list of %ss", objectOf(kind))
		}
	}
	return *list.Data, list.HasMore, nil
}

func (o object) entry() Entry {
	return Entry{
		Reference: o.ID, ChargeReference: o.Charge, OperationID: o.Metadata.OperationID,
		AmountMinor: o.Amount, Currency: strings.ToUpper(o.Currency), Declined: o.Status == "declined",
	}
}

func objectOf(kind payments.OperationKind) string {
	if kind == payments.Charge {
		return "charge"
	}
	return "refund"
}

func unreadable(status int, why string) Answer {
	return Answer{Outcome: Unreadable, Detail: oneLine(fmt.Sprintf("%d, unreadable: %s", status, why))}
}

// maxRetryAfter bounds what a mistake of the provider can cost: no operation waits for a year.
const maxRetryAfter = time.Hour

// retryAfter reads the header, in seconds or as a date.
func retryAfter(header http.Header) time.Duration {
	raw := header.Get("Retry-After")
	var after time.Duration

	if seconds, err := strconv.ParseUint(raw, 10, 31); err == nil {
		after = time.Duration(seconds) * time.Second
	} else if date, err := http.ParseTime(raw); err == nil {
		after = time.Until(date)
	}
	return min(max(after, 0), maxRetryAfter)
}

// oneLine makes a text from outside fit for a log line and a column.
func oneLine(s string) string {
	const limit = 200

	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, s)
	if cut := []rune(s); len(cut) > limit {
		s = string(cut[:limit])
	}
	return strings.Join(strings.Fields(s), " ")
}
