package fakepsp

import "sync"

// Card tokens that always behave in one way; doc.go says how.
const (
	tokenDeclined       = "tok_declined"
	tokenInvalid        = "tok_invalid"
	tokenRefundDeclined = "tok_refund_declined"
	tokenLoseReply      = "tok_lose_reply"
	tokenErrorBefore    = "tok_error_before"
	tokenErrorAfter     = "tok_error_after"
	tokenSlow           = "tok_slow"
)

// firsts knows the keys whose first call has come, of tokens that ask for it.
type firsts struct {
	mu   sync.Mutex
	seen map[string]bool
}

func (f *firsts) first(key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.seen[key] {
		return false
	}
	if f.seen == nil {
		f.seen = map[string]bool{}
	}
	f.seen[key] = true
	return true
}

// obey changes the fate of a call to what its token asks for. executes means that the call has
// claimed its key and executes the request.
func (d *fate) obey(token, key string, executes bool, firsts *firsts, f Faults) {
	if !executes {
		return
	}

	switch token {
	case tokenLoseReply:
		d.loseReply, d.errorBefore, d.errorAfter = true, false, false
	case tokenErrorAfter:
		d.loseReply, d.errorBefore, d.errorAfter = false, false, true
	case tokenErrorBefore:
		d.errorBefore = d.errorBefore || firsts.first(key)
	case tokenSlow:
		if firsts.first(key) {
			d.slow = true
			d.before += f.slowFor()
		}
	}
}
