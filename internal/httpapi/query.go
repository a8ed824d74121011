package httpapi

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/payments"
)

// query reads the parameters of a GET as strictly as a body: a misspelt filter that is ignored
// would show a client rows it did not ask for.
type query struct {
	values url.Values
	errors []fieldError
}

// newQuery refuses parameters that have no name, are not among known, or are repeated.
func newQuery(r *http.Request, known ...string) (*query, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, refuse("invalid-query", "The query is malformed.")
	}
	if values.Has("") { // errors could not name the parameter
		return nil, refuse("invalid-query", "The query has a parameter without a name.")
	}

	q := &query{values: values}

	for name, vs := range values {
		switch {
		case !slices.Contains(known, name):
			q.fail(name, fmt.Sprintf("%q is not a parameter of this request.", short(name)))
		case len(vs) > 1:
			q.fail(name, name+" must not be repeated.")
		}
	}
	return q, q.err()
}

func (q *query) fail(name, detail string) {
	mistake := fieldError{Parameter: short(name), Code: "invalid-query", Detail: detail}
	q.errors = append(q.errors, mistake)
}

func (q *query) err() error {
	if len(q.errors) == 0 {
		return nil
	}

	// In the same order every time: url.Values is a map.
	slices.SortFunc(q.errors, func(a, b fieldError) int {
		return strings.Compare(a.Parameter, b.Parameter)
	})

	// The first mistake is the problem itself.
	p := refuse("invalid-query", "%s", q.errors[0].Detail)
	p.Errors = q.errors[:min(len(q.errors), maxErrors)]
	return p
}

const (
	defaultLimit = 20
	maxLimit     = 100
)

func (q *query) limit() int {
	if !q.values.Has("limit") {
		return defaultLimit
	}

	n, err := strconv.ParseUint(q.values.Get("limit"), 10, 16)
	if err != nil || n < 1 || n > maxLimit {
		q.fail("limit", fmt.Sprintf("limit must be an integer from 1 to %d.", maxLimit))
	}
	return int(n) // 16 bits
}

// cursor returns nil if the list starts at the newest row.
func (q *query) cursor() *string {
	if !q.values.Has("cursor") {
		return nil
	}
	cursor := q.values.Get("cursor")
	return &cursor
}

// account returns nil if the parameter is absent.
func (q *query) account() *uuid.UUID {
	if !q.values.Has("account") {
		return nil
	}

	id, ok := canonicalID(q.values.Get("account"))
	if !ok {
		q.fail("account", "account must be an account id, a UUID in lower case with hyphens.")
	}
	return &id
}

// statuses are those that a payment can have.
var statuses = []payments.Status{
	payments.Authorized, payments.Processing, payments.Completed, payments.Canceled,
	payments.Expired, payments.Declined, payments.Failed,
}

// status returns the empty one if the parameter is absent.
func (q *query) status() payments.Status {
	if !q.values.Has("status") {
		return ""
	}

	s := payments.Status(q.values.Get("status"))
	if !slices.Contains(statuses, s) {
		q.fail("status", "status must be authorized, processing, completed, canceled, expired, "+
			"declined or failed.")
	}
	return s
}

// time returns nil if the parameter is absent.
func (q *query) time(name string) *time.Time {
	if !q.values.Has(name) {
		return nil
	}

	// UnmarshalText is strict; time.Parse accepts 9:30, commas and +24:00.
	var t time.Time
	if err := t.UnmarshalText([]byte(q.values.Get(name))); err != nil {
		q.fail(name, name+" must be an RFC 3339 time such as 2026-01-31T09:30:00Z; "+
			"encode a plus sign as %2B.")
	}
	return &t
}
