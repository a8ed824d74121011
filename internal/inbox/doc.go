// Package inbox consumes events from Kafka and makes the effect of each happen once.
//
// # Promise
//
// The note that an event was received and everything its handler writes are one transaction (Once,
// OnceEach). The Consumer commits offsets to Kafka only after that transaction has committed. So
//
//   - the effect of an event happens once, however often it is delivered: after a crash, a
//     rebalance, a reset of the offsets, or because the producer sent it again under its ce_id;
//   - no event is passed over: it takes effect, or it is a dead letter (inbox_dead_letters) that is
//     stored before its offset is committed and waits for an operator;
//   - events of one partition are handled in order, and so are events of one aggregate (topic and
//     key) even when one of them is a dead letter: those behind it wait with it, all other
//     aggregates flow.
//
// Not promised: one order across partitions; and nothing about what a handler does outside its
// transaction. A mail sent before a rollback is sent again.
//
// # One transaction for many events
//
// What one poll returned of one partition is one transaction, and the handler gets all of its new
// events at once: three statements beside the handler's and a COMMIT, for one event as for a
// thousand. The three look for dead letters, note the events, and note the last number of each
// aggregate. When such a transaction fails because of one event, its events are done one by one:
// those before the failing one take effect, it and those behind it wait.
//
// # Dead letters
//
// An event that fails is tried 5 times within about 30 s (Tries, TryFor) and then becomes a dead
// letter. Timeouts get 10 tries within 3 to 5 minutes: another transaction may hold the event's
// rows, or the database may be slow. A record that is no CloudEvent is a dead letter at once,
// identified by a hash of its place and its contents. An outage of the database is not a try; a
// connection that is lost in the handler counts as a timeout, for the event may be the cause.
//
// An operator decides (DeadLetters, RetryDeadLetter, SkipDeadLetter, or "consumer dead-letters"). A
// retried letter goes through the same handler in a transaction with its inbox row, and what waits
// behind it follows in order, up to 100 in a transaction. At most 20 (MaxDeadLetters) wait for a
// decision: a handler that fails everything stops its partitions and does not fill a table.
//
// # How long the inbox remembers
//
// inbox_events has a partition for each UTC day of the events' own time (ce_time), so a repeat is
// found whenever it comes. Days before the horizon are dropped, and no partition is ever made
// before it: an event of such a day, one without a ce_time, or one from the future cannot be told
// from a repeat. It is a dead letter (ErrForgotten); retrying it asserts that it has not taken
// effect.
//
// Retention must be a day longer than retention.ms and segment.ms of the topics together. While it
// is not, or the settings are unknown, nothing is dropped and OnHorizon says why. Days of undecided
// dead letters stay.
//
// # Missing and repeated numbers
//
// inbox_sequences holds the last ce_sequence of each aggregate. An event whose number does not
// follow is counted (OnGap) and named in the log, and stops nothing. Deduplication does not need
// it: it shows that a producer lost or repeated something.
//
// # What happens when
//
//	killed before COMMIT                      nothing happened; the partition's next owner does it
//	killed after COMMIT, before the offset    delivered again, refused by the table: no second effect
//	the offset cannot be committed            the same; retried as long as we own the partition
//	a partition is revoked in the middle      the batch in hand finishes; the next owner does the rest
//	stopped for longer than the session       two members do the same events: one waits for the
//	                                          other's row, and skips
//	the database is away                      fetching stops, the member stays in its group and
//	                                          retries without limit
//	a COMMIT waits for an absent standby      its events are delivered again and wait for it; that
//	                                          does not count as their failure
//	the broker is away                        the client retries without limit
//	a handler fails for an event              its partition waits for the tries, then it is a dead
//	                                          letter and its aggregate is parked
//	a record is no CloudEvent                 a dead letter at once
//	a handler ignores a failed statement      the event's failure, as if it had returned the error,
//	                                          a lost connection included
//	killed after a letter, before the offset  delivered again and found among the letters
//	a handler fails for every event           20 dead letters, then the partitions wait; the log says
//	                                          so, and a newer program goes on
//	an operator retries while events arrive   they wait behind the letters; one instance at a time
//	                                          processes those
//	a topic does not exist                    the consumer waits for it; the log and Ready name it
//
// Three preconditions: ce_id and ce_time of an event are the same on every delivery; no other event
// of the topics has that ce_id, whatever its ce_source; and the name of the consumer does not
// change. Under another name every redelivered event takes effect again.
//
// # To copy it
//
// Take this folder without its tests, and migrations/00005_inbox.sql (by goose, or its part above
// "+goose Down"). The consumer's login needs these rights:
//
//	GRANT SELECT, INSERT ON inbox_events TO consumer;
//	GRANT SELECT, INSERT, UPDATE ON inbox_dead_letters TO consumer;
//	GRANT SELECT, INSERT, UPDATE, DELETE ON inbox_sequences TO consumer;
//	GRANT SELECT ON inbox_horizon TO consumer;
//	GRANT EXECUTE ON FUNCTION inbox_events_make_partitions, inbox_events_drop_partitions TO consumer;
//
// That suffices for decisions on dead letters. If operators have a login of their own, it needs
//
//	GRANT SELECT, UPDATE ON inbox_dead_letters TO operator;
//	GRANT SELECT, INSERT, UPDATE ON inbox_sequences TO operator;
//
// Write a handler: it gets a transaction and new events, and must write with that transaction only.
// Only kafka*.go know Kafka: what you will want to edit (TLS, SASL) is in kafka.go. If you already
// have a consumer loop, all you need is Once in the handler's transaction, with offsets committed
// after it. On ErrNoDay roll back, call MakeDays and begin again; set ErrForgotten aside for a
// person.
package inbox
