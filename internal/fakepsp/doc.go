// Package fakepsp is a payment service provider over HTTP, for development, tests and
// demonstrations. It moves no money, but it keeps books like one that does, and it can be told to
// misbehave in every way that a provider does: lose replies, fail before or after executing, be
// slow, forget keys, and send its webhooks late, twice and in the wrong order.
//
// # Promise
//
//   - What was answered is in the books: a charge or refund is on disk before anyone hears of it.
//   - What is in the books is found by its key, across kill -9 at any point.
//   - A key executes at most once while it is remembered. Later calls get the first answer again,
//     byte for byte.
//   - Each event reaches the webhook URL at least once, also after a restart.
//
// Forgetting keys (Faults.ForgetKeysAfter) breaks the third promise on purpose: then a key may have
// two charges, and a lookup by key returns both.
//
// # API
//
// POST /v1/charges and /v1/refunds with Authorization: Bearer and Idempotency-Key; GET of the same
// paths lists (limit, starting_after) or looks up (key). GET and PUT /admin/faults, GET
// /admin/totals, /admin/books, /livez and /readyz need no key: do not expose them.
//
// # Tokens
//
// Some card tokens always behave in one way, whatever the faults. "First" counts for each key.
//
//	tok_declined         the charge is declined
//	tok_invalid          the charge is refused as invalid
//	tok_refund_declined  refunds of the charge are declined
//	tok_lose_reply       the reply to the call that executed is lost
//	tok_error_before     the first call is answered 500 and not executed
//	tok_error_after      the call that executed is answered 500
//	tok_slow             the first call takes Faults.SlowFor longer before it executes
package fakepsp
