// Package relay reads committed events from the outbox and sends them to a broker, in order.
//
// # Promise
//
// No committed event is lost and none is invented, with any number of concurrent writers and with
// transactions that stay open. Events of one aggregate arrive in the order of their commits; there is
// no order across aggregates. A crash repeats at most two full batches, under the same event ids;
// with exactly-once, readers with read_committed see no repeats. Consumers deduplicate by event id:
// package inbox shows how.
//
// # One term of a leader
//
// Relays of one name share a cursor. One leads, by a lease in the cursor's row; the others poll.
//
//	         lease is free         progress is read         ctx ends
//	standby ---------------> opening ------------> leading ---------> finishing --> end
//	   ^                        |                     |
//	   +------------------------+---------------------+
//	   an error, a lost lease or released dead letters end the term, after finishing
//
// Standby (elect in lease.go) takes a lease that was given back or has run out, and raises the
// fencing token. Every write of the term names the token and its holder; a move also names the
// cursor's last place.
//
// Opening (leader.open, progress.go) makes the Publisher, which fences earlier ones as far as the
// broker can, reads how far the last term really came, and sends dead letters that were released.
//
// Leading (leader.run) moves batches. A heartbeat renews the lease when a third of it has passed.
//
// Finishing (leader.finish) moves the cursor behind all that is acknowledged and gives the lease back.
//
// # One batch
//
//	read     a goroutine reads behind the cursor, one batch ahead       (batch.go, cursor.go)
//	split    events of parked aggregates become dead letters            (send.go, deadletter.go)
//	publish  the others go to the broker; with exactly-once progress    (send.go, Publisher)
//	         goes with them, else once a second
//	ack      the broker has the batch; a crash now repeats it           (leader.publish)
//	move     the cursor follows; small batches share a move             (leader.startMove)
//
// # The cursor
//
// Ids are drawn before their transactions commit, so they become visible out of order: reading
// "id > last" lost 2,472 of 20,000 events with 24 writers. A Position is therefore the highest id read
// and the snapshot it was read in. The next batch is the rows above that id, and the stragglers: rows
// at or below it that the snapshot could not see. A long transaction delays its own events only.
//
// More stragglers than a batch holds go out in chunks, all from the snapshot of the first chunk; new
// rows wait meanwhile. Every committed row is passed exactly once. cursor.go has the statements,
// docs/decisions/0003-cursor-by-snapshot.md three transactions step by step, under "By example".
//
// # When something fails
//
//	the relay dies after reading        nothing happened; the next leader reads the same batch
//	it dies after sending               the next term begins behind the progress that was kept and
//	                                    sends the rest again, under the same event ids; with
//	                                    exactly-once nothing is left to send again
//	it is frozen beyond its lease       another relay leads; the late one finds that out before its
//	                                    next batch. If it froze while it sent one, that arrives late
//	                                    and again, under its ids; it moves nothing and stands by
//	broker or database is away          the relay waits, with jitter and without limit
//	a topic is missing or forbidden     the same; OnError gets a TopicError
//	a topic's partitions changed        the same, with a PartitionsError in it; or the term drains
//	                                    first (RELAY_PARTITION_CHANGE)
//	the broker refuses an event         its aggregate is parked until an operator decides
//	a failover that lost nothing        the relay goes on where it was
//	a pooler goes to a promoted standby the next read ends the term, before any of it is sent
//	the database went back or changed   Run returns ErrRestored
//	it was upgraded or moved            the same, until Adopt or AdoptFrom has checked it
//	another database's relay is at the  nothing: the cursor's id is in the names of its progress and
//	same topics, under the same name    of its transactional id
//
// # To copy it
//
// Take internal/outbox, this folder, relay/kafka (or write a Publisher), all without their tests, and
// migrations/00003_outbox.sql. In relay/kafka, change the import of this package. Set Relay.DB and
// Relay.Open, call Run, and call outbox.KeepPartitions every few minutes. There are no session locks
// and no LISTEN: a pooler may be in between. The login needs these rights, as "relay" does here, and
// those of outbox's doc.go for "upkeep":
//
//	GRANT SELECT ON outbox_events TO relay;
//	GRANT SELECT ON SEQUENCE outbox_events_id_seq TO relay;
//	GRANT SELECT, INSERT, UPDATE ON outbox_cursors, outbox_dead_letters TO relay;
package relay
