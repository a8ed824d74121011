package psp

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/payments"
)

var (
	aCharge = payments.Operation{ID: uuid.MustParse(op), Kind: payments.Charge, AmountMinor: 2500, Currency: "USD", CardToken: "tok_visa"}
	aRefund = payments.Operation{ID: uuid.New(), Kind: payments.RefundCharge, AmountMinor: 2500, Currency: "USD", ChargeReference: "ch_1"}
)

const (
	op       = "0198a6de-5c1f-7000-8000-0123456789ab"
	charged  = `{"id":"ch_1","object":"charge","amount":2500,"currency":"usd","status":"succeeded","metadata":{"operation_id":"` + op + `"}}`
	refunded = `{"id":"re_1","object":"refund","charge":"ch_1","amount":2500,"currency":"usd","status":"succeeded","metadata":{}}`
)

func failure(kind, code string) string {
	return `{"error":{"type":"` + kind + `","code":"` + code + `","message":"no"}}`
}

func TestClassify(t *testing.T) {
	t.Parallel()
	entry := Entry{Reference: "ch_1", OperationID: op, AmountMinor: 2500, Currency: "USD"}
	declined := `{"error":{"type":"card_error","code":"card_declined","message":"no","object":` + strings.Replace(charged, "succeeded", "declined", 1) + `}}`
	for name, c := range map[string]struct {
		op     payments.Operation
		status int
		after  string
		body   string
		want   Answer
	}{
		"charged":                {aCharge, 201, "", charged, Answer{Outcome: Succeeded, Entry: entry}},
		"charged before":         {aCharge, 200, "", charged, Answer{Outcome: Succeeded, Entry: entry}},
		"refunded":               {aRefund, 201, "", refunded, Answer{Outcome: Succeeded, Entry: Entry{Reference: "re_1", ChargeReference: "ch_1", AmountMinor: 2500, Currency: "USD"}}},
		"declined":               {aCharge, 402, "", declined, Answer{Outcome: Declined, Entry: Entry{Reference: "ch_1", OperationID: op, AmountMinor: 2500, Currency: "USD", Declined: true}}},
		"declined, no object":    {aCharge, 402, "", failure("card_error", "card_declined"), Answer{Outcome: Declined}},
		"another amount":         {aCharge, 201, "", strings.Replace(charged, "2500", "250000", 1), Answer{Outcome: Conflict, Entry: Entry{Reference: "ch_1", OperationID: op, AmountMinor: 250000, Currency: "USD"}}},
		"another currency":       {aCharge, 201, "", strings.Replace(charged, "usd", "jpy", 1), Answer{Outcome: Conflict, Entry: Entry{Reference: "ch_1", OperationID: op, AmountMinor: 2500, Currency: "JPY"}}},
		"of another charge":      {aRefund, 201, "", strings.Replace(refunded, "ch_1", "ch_2", 1), Answer{Outcome: Conflict, Entry: Entry{Reference: "re_1", ChargeReference: "ch_2", AmountMinor: 2500, Currency: "USD"}}},
		"of another operation":   {aCharge, 201, "", strings.Replace(charged, op, "op_2", 1), Answer{Outcome: Conflict, Entry: Entry{Reference: "ch_1", OperationID: "op_2", AmountMinor: 2500, Currency: "USD"}}},
		"invalid":                {aCharge, 400, "", failure("invalid_request_error", "amount_too_small"), Answer{Outcome: Refused}},
		"no such charge":         {aRefund, 404, "", failure("invalid_request_error", "resource_missing"), Answer{Outcome: Refused}},
		"key reused":             {aCharge, 422, "", failure("idempotency_error", "key_reused"), Answer{Outcome: KeyReused}},
		"in progress":            {aCharge, 409, "2", failure("idempotency_error", "key_in_use"), Answer{Outcome: InProgress, RetryAfter: 2 * time.Second}},
		"too many":               {aCharge, 429, "30", failure("rate_limit_error", ""), Answer{Outcome: RateLimited, RetryAfter: 30 * time.Second}},
		"too many, for years":    {aCharge, 429, "999999999", "", Answer{Outcome: RateLimited, RetryAfter: time.Hour}},
		"too many, no number":    {aCharge, 429, "soon", "", Answer{Outcome: RateLimited}},
		"too many, negative":     {aCharge, 429, "-5", "", Answer{Outcome: RateLimited}},
		"too many, past date":    {aCharge, 429, "Wed, 21 Oct 2015 07:28:00 GMT", "", Answer{Outcome: RateLimited}},
		"wrong API key":          {aCharge, 401, "", failure("authentication_error", ""), Answer{Outcome: Unauthorized}},
		"forbidden":              {aCharge, 403, "", failure("invalid_request_error", ""), Answer{Outcome: Unauthorized}},
		"server error":           {aCharge, 500, "", failure("api_error", ""), Answer{Outcome: ServerError}},
		"unavailable":            {aCharge, 503, "7", "<html>", Answer{Outcome: ServerError, RetryAfter: 7 * time.Second}},
		"5xx that says declined": {aCharge, 500, "", declined, Answer{Outcome: ServerError}},
		"400 of a proxy":         {aCharge, 400, "", "<html>Bad Request</html>", Answer{Outcome: Unreadable}},
		"404 of a proxy":         {aCharge, 404, "", "", Answer{Outcome: Unreadable}},
		"402 of a proxy":         {aCharge, 402, "", `{"error":"pay for this proxy"}`, Answer{Outcome: Unreadable}},
		"422 of a proxy":         {aCharge, 422, "", `{}`, Answer{Outcome: Unreadable}},
		"400 of the card":        {aCharge, 400, "", failure("card_error", ""), Answer{Outcome: Unreadable}},
		"redirect":               {aCharge, 307, "", "", Answer{Outcome: Unreadable}},
		"no content":             {aCharge, 204, "", "", Answer{Outcome: Unreadable}},
		"accepted":               {aCharge, 202, "", charged, Answer{Outcome: Unreadable}},
		"teapot":                 {aCharge, 418, "", "", Answer{Outcome: Unreadable}},
		"half a body":            {aCharge, 201, "", charged[:40], Answer{Outcome: Unreadable}},
		"two bodies":             {aCharge, 201, "", charged + charged, Answer{Outcome: Unreadable}},
		"empty":                  {aCharge, 201, "", "", Answer{Outcome: Unreadable}},
		"empty object":           {aCharge, 201, "", "{}", Answer{Outcome: Unreadable}},
		"no id":                  {aCharge, 201, "", strings.Replace(charged, "ch_1", "", 1), Answer{Outcome: Unreadable}},
		"no amount":              {aCharge, 201, "", strings.Replace(charged, "2500", "0", 1), Answer{Outcome: Unreadable}},
		"fraction":               {aCharge, 201, "", strings.Replace(charged, "2500", "25.5", 1), Answer{Outcome: Unreadable}},
		"still pending":          {aCharge, 201, "", strings.Replace(charged, "succeeded", "pending", 1), Answer{Outcome: Unreadable}},
		"refund for a charge":    {aCharge, 201, "", refunded, Answer{Outcome: Unreadable}},
		"charge for a refund":    {aRefund, 201, "", charged, Answer{Outcome: Unreadable}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := classify(c.op, c.status, http.Header{"Retry-After": {c.after}}, []byte(c.body))
			if diff := cmp.Diff(c.want, got, cmpopts.IgnoreFields(Answer{}, "Detail")); diff != "" {
				t.Errorf("-want +got:\n%s%s", diff, got.Detail)
			}
			if (got.Detail == "") != (got.Outcome == Succeeded) {
				t.Errorf("detail: %q", got.Detail)
			}
		})
	}
}

// TestClassifyFound: only a list, complete and of one object at most, says what there is under a key.
func TestClassifyFound(t *testing.T) {
	t.Parallel()
	list := func(data string) string { return `{"object":"list","data":[` + data + `],"has_more":false}` }
	for name, c := range map[string]struct {
		status int
		body   string
		want   Outcome
	}{
		"nothing":          {200, list(""), Refused},
		"one":              {200, list(charged), Succeeded},
		"declined":         {200, list(strings.Replace(charged, "succeeded", "declined", 1)), Declined},
		"another amount":   {200, list(strings.Replace(charged, "2500", "1", 1)), Conflict},
		"of another one":   {200, list(strings.Replace(charged, op, "op_2", 1)), Conflict},
		"two":              {200, list(charged + "," + charged), Conflict},
		"empty, and more":  {200, strings.Replace(list(""), "false", "true", 1), Unreadable},
		"more":             {200, strings.Replace(list(charged), "false", "true", 1), Conflict},
		"no data":          {200, `{"object":"list","has_more":false}`, Unreadable},
		"null":             {200, `{"object":"list","data":null}`, Unreadable},
		"not a list":       {200, `{}`, Unreadable},
		"a charge":         {200, charged, Unreadable},
		"created":          {201, list(""), Unreadable},
		"of refunds":       {200, list(refunded), Unreadable},
		"no such route":    {404, failure("invalid_request_error", "unknown_url"), Unreadable},
		"invalid":          {400, failure("invalid_request_error", ""), Unreadable},
		"card error":       {402, failure("card_error", ""), Unreadable},
		"idempotency":      {422, failure("idempotency_error", ""), Unreadable},
		"wrong key of API": {401, failure("authentication_error", ""), Unauthorized},
		"down":             {503, "", ServerError},
		"too many":         {429, "", RateLimited},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := classifyFound(aCharge, c.status, http.Header{}, []byte(c.body)); got.Outcome != c.want {
				t.Errorf("got %s (%s), want %s", got.Outcome, got.Detail, c.want)
			}
		})
	}
}

// FuzzClassify: whatever an answer is made of, a result needs the status and the words for it.
func FuzzClassify(f *testing.F) {
	for _, status := range []uint16{200, 201, 400, 402, 404, 409, 422, 429, 500} {
		for _, body := range []string{charged, refunded, failure("card_error", "x"), failure("invalid_request_error", "x"), failure("idempotency_error", "x"), "{", "\xff"} {
			f.Add(status, "7", []byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, status uint16, after string, body []byte) {
		for _, op := range []payments.Operation{aCharge, aRefund} {
			a := classify(op, int(status), http.Header{"Retry-After": {after}}, body)
			allowed := map[Outcome][]int{
				Succeeded: {200, 201}, Conflict: {200, 201}, Declined: {200, 201, 402}, Refused: {400, 404}, KeyReused: {422},
			}[a.Outcome]
			good := allowed == nil
			for _, s := range allowed {
				good = good || s == int(status)
			}
			words := map[Outcome]string{Refused: "invalid_request_error", KeyReused: "idempotency_error"}[a.Outcome]
			switch {
			case !good, words != "" && !strings.Contains(a.Detail, words):
				t.Errorf("%d: %+v", status, a)
			case a.Outcome == Succeeded && (a.Entry.AmountMinor != op.AmountMinor || a.Entry.Currency != op.Currency || a.Entry.Reference == ""):
				t.Errorf("succeeded with %+v", a.Entry)
			case a.RetryAfter < 0 || a.RetryAfter > time.Hour:
				t.Errorf("retry after %s", a.RetryAfter)
			case !utf8.ValidString(a.Detail) || utf8.RuneCountInString(a.Detail) > 200 || strings.ContainsAny(a.Detail, "\x00\r\n"):
				t.Errorf("detail %s", strconv.Quote(a.Detail))
			}
		}
	})
}
