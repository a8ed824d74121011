package httpapi

import (
	"context"
	"time"
)

type health struct {
	Status string `json:"status"`
}

// live reports that the process answers, nothing more: restarting the API does not repair a
// database.
func live(*call) (response, error) { return ok(health{"live"}), nil }

// ready reports whether requests should be sent to this instance.
func (s *server) ready(c *call) (response, error) {
	// A load balancer takes no answer for no.
	ctx, cancel := context.WithTimeout(c.Context(), 2*time.Second)
	defer cancel()
	if err := s.Ready(ctx); err != nil {
		return response{}, refuse("unavailable", "Send requests to another instance.").
			with("Retry-After", soon()).because(err)
	}
	return ok(health{"ready"}), nil
}
