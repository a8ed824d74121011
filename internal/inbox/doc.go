// Package inbox takes events from Kafka so that the effect of each happens once.
//
// # Promise
//
// The note that an event was received and everything its handler writes are one transaction (Once, OnceEach). The Consumer
// commits offsets to Kafka only after that transaction is committed. So
//
//   - the effect of an event happens once, however often it is delivered: after a crash, a rebalance, a reset of the
//     offsets, or because the producer sent it again under the same ce_id;
//   - no event is passed over: it takes effect, or it is a dead letter (inbox_dead_letters) that is stored before its
//     offset is committed and waits for an operator;
//   - events of one partition are handled in their order, and events of one aggregate (topic and key) even when one of them
//     is a dead letter: those behind it wait with it, all other aggregates flow.
//
// Not promised: one order across partitions; and nothing about what a handler does outside its transaction. A mail that is
// sent before a rollback is sent again.
//
// # One transaction for many events
//
// What one poll brought of one partition is one transaction, and the handler gets all of its new events at once: three
// statements beside the handler's and a COMMIT for one event as for a thousand. They look for dead letters, note the events,
// and note how far the aggregates' numbers are. When such a transaction fails for a reason of one event, its events are
// done one by one: those before the failing one take effect, it and those behind it wait.
//
// # Dead letters
//
// An event that fails is tried again, 5 times within about 30 s (Tries, TryFor), and is a dead letter then. Timeouts are
// given 10 tries within 3 to 5 minutes: another transaction may hold its rows, or the database be slow. A record that is no
// CloudEvent is a dead letter at once; it is known by a hash of its place and its contents. An outage of the database is no try.
// An operator decides (DeadLetters, RetryDeadLetter, SkipDeadLetter, or "consumer dead-letters"). What is retried goes
// through the same handler in a transaction with its inbox row, and what waits behind it follows, in order. At most 20
// (MaxDeadLetters) wait for a decision: a handler that fails everything stops its partitions and does not fill a table.
//
// # How long the inbox remembers
//
// inbox_events has a partition for each UTC day of the events' own time (ce_time), so a repeat is found whenever it comes.
// Days before the horizon are dropped, and no partition is ever made before it: an event of such a day, one without a
// ce_time, or one from the future cannot be told from a repeat. It is a dead letter (ErrForgotten); who retries it says that
// it has not taken effect. Retention must be a day longer than retention.ms and segment.ms of the topics together; while it
// is not, or nobody knows, nothing is dropped and OnHorizon says why. Days of undecided dead letters stay.
//
// # Missing and repeated numbers
//
// inbox_sequences knows the last ce_sequence of each aggregate. An event whose number does not follow is counted (OnGap) and
// named in the log, and stops nothing. Deduplication does not need it: it shows that a producer lost or repeated something.
//
// # What happens when
//
//	killed before COMMIT                        nothing happened; the next owner of the partition does it
//	killed after COMMIT, before the offset      delivered again, and refused by the table: nothing happens twice
//	the offset cannot be committed              the same; it is tried again as long as the partition is ours
//	a partition is revoked in the middle        it waits for the batch in hand; what had to wait is left to the next owner
//	stopped for longer than the session lasts   two members do the same events: one waits for the other's row, and skips
//	the database is away                        nothing more is fetched, the member stays in its group, tries for ever
//	a COMMIT waits for a standby that is away   its events are delivered again and wait for it; that is no failure of theirs
//	the broker is away                          the client tries for ever
//	a handler fails for an event                its partition waits for the tries, then it is a dead letter and its aggregate parked
//	a record is no CloudEvent                   a dead letter at once
//	killed after a letter, before the offset    delivered again and found among the letters
//	a handler fails for every event             20 dead letters, then the partitions wait; the log says so, a newer program goes on
//	an operator retries while events arrive     they wait behind the letters; one instance at a time processes those
//	a topic does not exist                      it is waited for, and named in the log and by Ready
//
// What must hold for it: ce_id and ce_time of an event are the same on every delivery, and the name of the consumer stays what
// it is. Under another name everything that is delivered again takes effect again.
//
// # To copy it
//
// Take this folder without its tests, and migrations/00005_inbox.sql (by goose, or its part above "+goose Down"). Grant the
// consumer's role:
//
//	GRANT SELECT, INSERT ON inbox_events TO consumer;
//	GRANT SELECT, INSERT, UPDATE ON inbox_dead_letters TO consumer;
//	GRANT SELECT, INSERT, UPDATE, DELETE ON inbox_sequences TO consumer;
//	GRANT SELECT ON inbox_horizon TO consumer;
//	GRANT EXECUTE ON FUNCTION inbox_events_make_partitions, inbox_events_drop_partitions TO consumer;
//
// Write a handler: it gets a transaction and new events, and writes with that transaction only. kafka*.go alone know Kafka: what
// you will want to edit (TLS, SASL) is in kafka.go. If you have a consumer loop already, Once in the handler's transaction,
// with offsets committed after it, is what you need; on ErrNoDay roll back, call MakeDays and begin again, and set
// ErrForgotten aside for a person.
package inbox
