package page

import (
	"net"
	"net/http"
	"net/url"
	"slices"
)

// policy lets the page load what this server serves, and nothing else.
const policy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// guard answers only requests for our own address that our own page, or no page, has sent. A site
// whose name was made to point at this machine comes with its own Host; a form or a script of
// another site with its own Origin.
func (s *Server) guard(next http.Handler) http.Handler {
	hosts := s.hosts()

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(hosts, r.Host) {
			http.Error(w, "this page is for "+hosts[0]+" only", http.StatusForbidden)
			return
		}
		if !sameOrigin(r, hosts) {
			http.Error(w, "a page of another site has sent this request", http.StatusForbidden)
			return
		}

		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// hosts are the names that a browser on this machine may have used.
func (s *Server) hosts() []string {
	at := s.listener.Addr().String()
	_, port, _ := net.SplitHostPort(at) // an address of our own
	return []string{at, net.JoinHostPort("localhost", port)}
}

func sameOrigin(r *http.Request, hosts []string) bool {
	origins, sent := r.Header["Origin"]
	if !sent {
		// A browser sends it with every POST. Sec-Fetch-Site tells of what it asks for without.
		site := r.Header.Get("Sec-Fetch-Site")
		return site == "" || site == "same-origin" || site == "none"
	}

	u, err := url.Parse(origins[0])
	return err == nil && len(origins) == 1 && u.Scheme == "http" && slices.Contains(hosts, u.Host)
}
