package httpapi_test

import (
	"fmt"
	"net/http"
	"time"

	"github.com/anishathalye/porcupine"
)

// The history of a payment is what its clients asked and were told, and when. It must be explained
// by a single life, one command after the other, in which each takes place between its request and
// its answer.

// life is what is known of a payment, written down once more, without a look at the code.
type life struct {
	status             string
	version            int64
	captured, refunded int64
	over               bool // its authorization has reached its time
}

// asked is a request, and what it must know of the payment.
type asked struct {
	payment string
	action  string // capture, cancel, refunds (as in the path), read; over and expire are the clock's
	amount  int64  // of a capture or refund
	version int64  // If-Match; zero: none
	early   bool   // sent before the authorization was over
}

// told is what the client learned.
type told struct {
	unknown  bool // it gave up: the command may have taken place, or may yet
	status   int
	code     string // of a problem
	payment  life   // of an answer that has the payment, except over
	refunded int64  // by this refund
	version  int64  // of the payment, after this refund
}

const (
	held      = 100                   // of each payment
	tolerance = 20 * time.Millisecond // between our clock and that of the database
)

// step returns whether a payment in this state answers so, and its next state.
func (l life) step(a asked, t told) (bool, life) {
	// It was dated before the end, under the payment's lock, and its COMMIT took a while.
	if a.early && (a.action == "capture" || a.action == "cancel") && (t.unknown || t.status == http.StatusOK) {
		l.over = false
	}

	want, next := l.after(a)
	switch {
	case t.unknown:
		return true, next
	case t.status != want.status || t.code != want.code:
		return false, l
	case t.status == http.StatusOK:
		shown := next
		shown.over = false
		return t.payment == shown, next
	case t.status == http.StatusCreated:
		return t.refunded == next.refunded-l.refunded && t.version == next.version, next
	}
	return true, next
}

func (l life) after(a asked) (told, life) {
	refused := func(status int, code string) (told, life) { return told{status: status, code: code}, l }
	next := l
	next.version++

	authorized := l.status == "authorized"
	switch {
	case a.action == "read":
		return told{status: http.StatusOK}, l
	case a.action == "over":
		next = l
		next.over = true
		return told{}, next
	case a.action == "expire" && authorized && l.over:
		next.status = "expired"
		return told{}, next
	case a.action == "expire":
		return told{}, l

	case a.version != 0 && a.version != l.version:
		return refused(http.StatusPreconditionFailed, "version-mismatch")
	case a.action != "refunds" && (l.status == "expired" || authorized && l.over):
		return refused(http.StatusConflict, "authorization-expired")
	case authorized == (a.action == "refunds") || !authorized && l.status != "completed":
		return refused(http.StatusConflict, "invalid-state")

	case a.action == "cancel":
		next.status = "canceled"
		return told{status: http.StatusOK}, next
	case a.action == "capture" && a.amount > held:
		return refused(http.StatusUnprocessableEntity, "amount-exceeds-authorized")
	case a.action == "capture":
		next.status, next.captured = "completed", a.amount
		return told{status: http.StatusOK}, next
	case a.amount > l.captured-l.refunded:
		return refused(http.StatusUnprocessableEntity, "amount-exceeds-captured")
	}
	next.refunded += a.amount
	return told{status: http.StatusCreated}, next
}

// lives checks each payment by itself.
var lives = porcupine.Model{
	Partition: func(all []porcupine.Operation) (parts [][]porcupine.Operation) {
		place := map[string]int{}
		for _, o := range all {
			p := o.Input.(asked).payment
			if _, found := place[p]; !found {
				place[p], parts = len(parts), append(parts, nil)
			}
			parts[place[p]] = append(parts[place[p]], o)
		}
		return parts
	},
	Init: func() any { return life{status: "authorized", version: 1} },
	Step: func(state, input, output any) (bool, any) {
		return state.(life).step(input.(asked), output.(told))
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v → %+v", input, output) },
}
