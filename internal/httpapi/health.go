package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/oncepay/oncepay/internal/idempotency"
)

type health struct {
	Status string `json:"status"`
}

// live says that the process answers, and no more: a database that is down is no reason to restart the API.
func (s *server) live(http.Header, *http.Request) (idempotency.Response, error) {
	return ok(health{"live"}), nil
}

// ready says whether requests should be sent here.
func (s *server) ready(_ http.Header, r *http.Request) (idempotency.Response, error) {
	if s.Ready != nil {
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		if err := s.Ready(ctx); err != nil {
			return idempotency.Response{}, refuse("unavailable", "Send requests to another instance.").with("Retry-After", soon()).because(err)
		}
	}
	return ok(health{"ready"}), nil
}
