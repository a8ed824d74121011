// Package relay publishes the events of an outbox to Kafka if and only if the transaction that wrote them committed.
//
// # Promise
//
// Append writes events in the caller's transaction. The Relay reads them and produces them to Kafka:
//
//   - no event is lost and none is invented, under any number of concurrent writers and with long transactions open;
//   - events of one aggregate arrive in the order of their commits;
//   - a crash of relay or broker repeats at most as many events as two full batches have, under the same event ids; with kafka.Producer.ExactlyOnce it
//     repeats nothing that readers with read_committed see.
//
// Not promised: one order across aggregates, or that nobody else sees an event twice. Consumers deduplicate by ce_id; package
// inbox shows how.
//
// # The cursor
//
// Ids are drawn before their transactions commit, so they become visible out of order, and "id > last" loses events
// (2,472 of 20,000, measured with 24 writers). The position of a relay is therefore a pair: the highest id read, and the
// snapshot it was read in. The next batch is the rows above last, and the stragglers: rows at or below last that the
// snapshot could not see. Nothing waits for a long transaction but its own events. See cursor.go.
//
// Order within an aggregate holds because an event's id is drawn while its transaction holds the aggregate's row lock, in
// a statement after the one that took it, from a sequence that caches nothing.
//
// # Leadership
//
// Any number of relays of one name may run. One is leader by a lease in outbox_cursors, by the database's clock; the others
// wait. Every change of leader raises a fencing token, and every move of the cursor names the token it was elected with.
// There are no session locks and no LISTEN: a pooler may stand in between.
//
// A heartbeat renews the lease when a third of it has passed, and ends the term when another relay leads, the database went back, or the
// lease could not be renewed in time. A standby takes a lease that was given back or has run out.
//
// # What happens when
//
//	the relay dies after reading              nothing happened; the next leader reads the same batch
//	it dies after producing                   the batch is produced again, under the same event ids, or begun behind (ExactlyOnce)
//	it is stopped for longer than its lease   another one leads; the late one moves nothing, and waits like any other
//	the broker is away                        the relay waits, for ever; the backlog grows in Postgres
//	the database is away                      the same
//	a topic is missing or forbidden           the same; OnError is told a TopicError
//	a topic's partitions changed              the same, with a PartitionsError in it; or it drains (kafka/partitions.go)
//	the broker refuses an event               its aggregate is parked until an operator decides, all others flow (deadletter.go)
//	the database fails over, losing nothing   the relay goes on, wherever it was
//	the database was restored, or went back   the relay refuses to start and says so (see ErrRestored)
//
// # To copy it
//
// Take this folder without its tests, and migrations/00003_outbox.sql (by goose, or its part above "+goose Down"); create the
// event's row in the transaction of the change, by Append or by an INSERT of aggregate_type, aggregate_id, event_type and
// payload. Run a Relay, and call KeepPartitions every few minutes. A writer that gets an error for
// which MissingDay is true rolls back, calls MakePartitions and runs its transaction again. The files
// relay/kafka alone knows Kafka; TLS, SASL and compression are kafka.Producer.Options.
package relay
