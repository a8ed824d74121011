package fakepsp

import (
	"net/http"
	"strconv"
	"time"
)

// page is the answer to a list.
type page[T any] struct {
	Object  string `json:"object"` // "list"
	Data    []T    `json:"data"`
	HasMore bool   `json:"has_more"`
}

// defaultLimit and maxLimit are items of a page.
const (
	defaultLimit = 100
	maxLimit     = 1000
)

// list answers with what one key did, or with a page of all, oldest first. While a request with the key
// runs, its outcome is open.
func list[T any](p *PSP, s *shelf[T]) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		p.pause(time.Duration(p.Faults().Latency))

		query := r.URL.Query()
		limit := defaultLimit
		if query.Has("limit") {
			n, err := strconv.Atoi(query.Get("limit"))
			if err != nil || n < 1 || n > maxLimit {
				invalid("limit_invalid", "limit must be 1 to 1000").write(w)
				return
			}
			limit = n
		}

		if query.Has("key") && p.books.running(query.Get("key")) {
			keyInUse.write(w)
			return
		}

		answer, found := page[T]{Object: "list", Data: []T{}}, true
		var items []*item[T]

		// Copied under the lock: a refund may change its charge.
		p.books.mu.RLock()
		if query.Has("key") {
			items = s.byKey[query.Get("key")]
		} else {
			items, answer.HasMore, found = s.page(query.Get("starting_after"), limit)
		}
		for _, i := range items {
			answer.Data = append(answer.Data, *i.value)
		}
		p.books.mu.RUnlock()

		if !found {
			invalid("resource_missing", "starting_after is not in the list").write(w)
			return
		}
		writeJSON(w, http.StatusOK, answer)
	}
}
