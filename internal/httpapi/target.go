package httpapi

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/oncepay/oncepay/internal/payments"
)

// target reads which payment a POST below one is about: {id}, and If-Match if it is there.
func (c *call) target() (payments.Target, error) {
	id, err := c.pathID()
	if err != nil {
		return payments.Target{}, err
	}
	version, err := ifMatch(c.Header)
	return payments.Target{PaymentID: id, IfVersion: version}, err
}

// paramsOf are the parts of a request that its route and body do not have. They belong to its
// fingerprint: the same body about another payment, or about another version, is another request. An
// If-Match of * asks for nothing that a request without one does not.
func paramsOf(t payments.Target) []string {
	if t.IfVersion == 0 {
		return []string{t.PaymentID.String()}
	}
	return []string{t.PaymentID.String(), strconv.FormatInt(t.IfVersion, 10)}
}

// etag is the entity tag of a payment. It is strong: the same version gives the same bytes.
func etag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

// knows reports whether the client has the version with this tag already (RFC 9110 section 13.1.2).
// Unlike a bad If-Match, a bad If-None-Match does no harm: its client gets the whole answer.
func knows(h http.Header, tag string) bool {
	for _, line := range h.Values("If-None-Match") {
		for known := range strings.SplitSeq(line, ",") { // our tags have no commas
			known = strings.Trim(known, " \t")
			if known == "*" || strings.TrimPrefix(known, "W/") == tag {
				return true
			}
		}
	}
	return false
}

// ifMatch reads the If-Match header (RFC 9110 section 13.1.1); zero: any version will do. It takes
// what our ETag says and nothing else. To evaluate the rest as the RFC would, never matching, makes
// a client's mistake look like another client's change.
func ifMatch(h http.Header) (version int64, err error) {
	lines := h.Values("If-Match")
	if len(lines) == 0 {
		return 0, nil
	}

	tag := strings.Trim(lines[0], " \t")
	switch {
	case len(lines) > 1, strings.Contains(tag, ","):
		return 0, refuse("if-match-invalid", "If-Match must be one entity tag and not a list: "+
			"a payment has one version at a time.")
	case tag == "*":
		return 0, nil
	case strings.HasPrefix(tag, "W/"):
		return 0, refuse("if-match-invalid", "If-Match must not be a weak entity tag: "+
			"send the ETag of the payment as you received it, without W/.")
	}

	// In one spelling only: not "07", not "+7".
	digits := strings.Trim(tag, `"`)
	version, err = strconv.ParseInt(digits, 10, 64)
	if err != nil || version < 1 || tag != etag(version) {
		return 0, refuse("if-match-invalid", `If-Match must be the ETag of the payment, `+
			`its version in quotation marks such as "2", or *.`)
	}
	return version, nil
}
