package httpapi

import (
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/payments"
)

// The decoders, for the fuzzer and the golden bytes.
var (
	DecodePayment = paymentDecoder(payments.MinAuthorization)
	DecodeAccount = decoder(decodeAccount)
	DecodeCapture = decoder(decodeCapture)
	DecodeCancel  = decoder(decodeCancel)
	DecodeRefund  = decoder(decodeRefund)
)

// IfMatch is ifMatch.
func IfMatch(h http.Header) (int64, error) { return ifMatch(h) }

// Code is the code of a problem.
func Code(err error) string { return problemFor(err).Code }

// PreferredWait is preferredWait.
func PreferredWait(h http.Header) (time.Duration, bool) { return preferredWait(h) }

// Limits is limits.
type Limits struct{ *limits }

// NewLimits is newLimits.
func NewLimits(rate float64, now func() time.Time) Limits { return Limits{newLimits(rate, now)} }

// Take is take.
func (l Limits) Take(client uuid.UUID) time.Duration { return l.take(client) }

// GiveBack is giveBack.
func (l Limits) GiveBack(client uuid.UUID) { l.giveBack(client) }

// Len is the number of clients that are remembered.
func (l Limits) Len() int { return len(l.buckets) }

// MaxClients is the most clients that are remembered.
const MaxClients = maxClients
