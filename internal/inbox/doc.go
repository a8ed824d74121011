// Package inbox takes events from Kafka so that the effect of each happens once.
//
// # Promise
//
// The note that an event was received and everything its handler writes are one transaction (Once, OnceEach). The Consumer
// commits offsets to Kafka only after that transaction is committed. So
//
//   - the effect of an event happens once, however often it is delivered: after a crash, a rebalance, a reset of the
//     offsets, or because the producer sent it again under the same ce_id;
//   - no event is passed over. One that cannot be handled stops its own partition, is tried again for ever and is named in
//     log and metric; the other partitions flow on;
//   - events of one partition are handled in their order.
//
// Not promised: one order across partitions; and nothing about what a handler does outside its transaction. A mail that is
// sent before a rollback is sent again.
//
// # One transaction for many events
//
// What one poll brought of one partition is one transaction, and the handler gets all of its new events at once: two
// statements and a COMMIT for one event as for a thousand. When such a transaction fails for a reason of one event, its
// events are done one by one: those before the failing one take effect, it and those behind it wait.
//
// # What happens when
//
//	killed before COMMIT                        nothing happened; the next owner of the partition does it
//	killed after COMMIT, before the offset      delivered again, and refused by the table: nothing happens twice
//	the offset cannot be committed              the same; it is tried again as long as the partition is ours
//	a partition is revoked in the middle        it waits for the batch in hand; what had to wait is left to the next owner
//	stopped for longer than the session lasts   two members do the same events: one waits for the other's row, and skips
//	the database is away                        nothing more is fetched, the member stays in its group, tries for ever
//	the broker is away                          the client tries for ever
//	an event is malformed, or its handler fails its partition waits, with backoff; counted as failed and logged each time
//	a topic does not exist                      it is waited for, and named in the log and by Ready
//
// What must hold for it: the rows of inbox_events are kept for longer than the topic keeps its records, and the name of the
// consumer stays what it is. Under another name everything that is delivered again takes effect again.
//
// # To copy it
//
// Take this folder without its tests, and migrations/00005_inbox.sql (by goose, or its part above "+goose Down"). Write a
// handler: it gets a transaction and new events, and writes with that transaction only. kafka.go alone knows Kafka: what you will want to edit (TLS, SASL) is there. If you have a consumer
// loop already, Once in the handler's transaction, with offsets committed after it, is all you need.
package inbox
