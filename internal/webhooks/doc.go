// Package webhooks sends events to the endpoints of tenants, in the form of Standard Webhooks
// (https://www.standardwebhooks.com).
//
// # Promise
//
//   - Every event of a tenant that happened after one of its endpoints was created, and whose type
//     the endpoint takes, is sent to it until it answers 2xx, for three days (Schedule, GiveUp).
//   - The events of one payment reach an endpoint in order: a delivery waits while an earlier one of
//     the same endpoint and subject is pending. Payments do not wait for each other.
//   - webhook-id is the event's id and the body the same in every try, so a receiver that has seen the
//     id has seen the event. Each try has its own timestamp and signature.
//   - An endpoint that is slow or hangs uses up its own calls, not those of others.
//   - No call reaches an address that is not public unless the operator allows it, whatever a name
//     resolves to when the connection is made. Redirects are not followed, no proxy is used.
//
// Not promised: that an event arrives once. A call whose answer is lost is made again, so receivers
// deduplicate by webhook-id. And not one order across payments.
//
// # How
//
// Write makes a row for each event and endpoint. It belongs into the transaction in which an inbox
// notes the events, so that none is sent twice because Kafka delivered it again. A Sender claims what
// is due, for a lease and under a token, commits, calls, and records the results of many calls in one
// transaction. Any number of senders share the work.
//
// Order needs no lock: the claim passes over a delivery that has an earlier pending one, and looks at
// it again when that one is due, or at once when that one is delivered. It reads a snapshot, which can
// be wrong in one direction only. It may show an earlier delivery as pending that was delivered a
// moment ago, never the other way round: the events of one payment come from one partition of Kafka,
// in order, so the row of an earlier event is committed before that of a later one is written.
//
// # What happens when
//
//	the sender dies before the call        the claim ends after Lease; another sender makes the call
//	it dies after the call                 the same: the receiver gets the event twice
//	a call takes longer than Timeout       a failure
//	a sender stalls for longer than Lease  its results are refused by the token; the receiver may get
//	                                       an old event again, behind a newer one
//	the endpoint answers anything but 2xx  a failure; retried by Schedule, with jitter
//	it answers 410                         it is disabled
//	nothing succeeds for GiveUp            it is disabled
//	one delivery fails for GiveUp while    that delivery has failed and those behind it go on; its
//	others succeed                         tenant can have it sent again (Redeliver)
//	an endpoint is disabled                its tenant gets the event webhook_endpoint.disabled. What is
//	                                       pending stays, new events join it, and all is sent in order
//	                                       after Enable, up to Retention; older ones are deleted unsent
//	events come faster than it answers     they wait, up to Retention; older ones are deleted unsent
//	an endpoint is deleted                 calls in flight finish, nothing else is sent
//
// # Secrets
//
// They are kept in plain text, since each call is signed with them: who reads the table or a backup
// can forge calls to receivers. Rotate replaces one; for a day both are valid and every call has two
// signatures.
package webhooks
