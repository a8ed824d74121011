package httpapi

import (
	"net/http"
	"strings"

	"github.com/oncepay/oncepay/internal/credentials"
)

// private serves calls that have exactly one Authorization header with a valid bearer credential.
// All others get the same 401, or a 503 when the database cannot be asked.
func (s *server) private(h handler) http.HandlerFunc {
	return s.serve(func(c *call) (response, error) {
		identity, err := s.identify(c)
		if err != nil {
			return response{}, err
		}

		c.identity, c.observe.Identity = identity, identity
		return h(c)
	})
}

func (s *server) identify(c *call) (credentials.Identity, error) {
	// Of two headers a proxy may have checked the other one.
	lines := c.Header.Values("Authorization")
	if len(lines) != 1 {
		return credentials.Identity{}, credentials.ErrUnauthorized
	}

	scheme, token, _ := strings.Cut(lines[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return credentials.Identity{}, credentials.ErrUnauthorized
	}
	return s.Credentials.Verify(c.Context(), strings.TrimLeft(token, " "))
}
