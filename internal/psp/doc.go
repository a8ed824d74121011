// Package psp executes charges and refunds at a payment service provider (PSP), each of them once.
//
// # Promise
//
//   - A card is charged once for each operation, whatever fails: reply, provider, network, worker,
//     database. All tries of an operation carry one key, derived from the operation's id, and the
//     provider executes a key once.
//   - No call is made without a committed row of psp_operations, and none with a transaction open.
//   - A result is what the provider said about this key. A timeout, a broken connection, an error
//     of the provider or an answer that we cannot read is no result: the operation stays unknown,
//     and the same key is sent again after 1 s, 2 s, 4 s … up to 5 min.
//   - A refusal counts only if no earlier try can have been executed. Otherwise the provider is
//     asked by key first.
//   - A key is not sent any more when the provider may have forgotten it. Then the provider is
//     asked, and what it does not know either is left to an operator. Nothing is guessed.
//
// # No promise
//
// A provider without idempotency keys cannot be used this way: after a lost reply it could only be
// asked, and would have to know our reference. Nor is an operation done within a certain time: with
// a provider that may not answer, it is certain or soon, and we chose certain.
//
// # What fails
//
//	the worker dies after the claim         due again when the lease of 20 s ends
//	the worker dies after the call          the same, and the same key gets the same answer
//	the reply is lost                       unknown, the same key again
//	the provider is down                    the breaker opens; operations wait as pending
//	the database is down                    the result is held until the lease ends, then as above
//	the webhook is first                    the result is recorded once; the second changes nothing
//	two workers have one operation          the provider answers 409 or the first answer again
//	the books differ (amount, key reused)   an error in the log, a metric, and an operator
//
// # Another provider
//
// Provider is the interface to implement, Client in http.go an implementation: replace it together
// with classify.go. What a provider's answer means is decided there and nowhere else. When to
// believe it is in call.go, when to call in worker.go, when not to in breaker.go.
package psp
