// Package invariant counts what was lost, doubled, reordered, changed or out of balance. It works
// after the fact and from outside: from the tables, one full scan of the topics, what clients
// recorded, and the PSP's books. It asks no program and imports none of them.
//
// It is for anyone who wants to trust the service. The demo and the crash tests end with it. No
// command runs it against a service of yours; copy a single query for that. Each is a constant of
// its own that lists what is wrong and returns no rows when all is well (those that name
// topic_records, exchanges or bounds need what check.go copies there).
//
// # What is promised
//
//   - All input is read: every committed record of the topics up to where they ended when the check
//     began, every row of the tables in one snapshot taken after that, every line of the histories.
//     Unreadable input is an error, not a smaller count. So is a role that may not see every row.
//   - A defect turns the matching line red. One that breaks several promises turns several red.
//   - Nothing is changed. The check works in temporary tables, on one connection that it takes out
//     of the pool and closes. That connection may take half a gigabyte of the server's memory.
//   - A million payments are checked in under a minute: 46 s with Apache Kafka 4.3 and Postgres
//     17, 42 s with the embedded servers, all of it on two shared cores
//     (BenchmarkCheckOfAMillionPayments, with a history of 1,250,000 attempts).
//
// # What is not
//
//   - That the service was quiet. Anything in flight counts as lost: let backlog and lag reach zero
//     first.
//   - That data dropped for its age was right. Answers are checked for as long as they are
//     promised, and events since the oldest day of the outbox. Where topics have deleted records,
//     only what is younger than the oldest record left in every partition is checked. A topic
//     with a partition that lost all of its records proves nothing lost: watch Line.Of.
//   - That the inbox was kept long enough. docs/operating.md allows deleting old rows of
//     inbox_events; where their records are still on the topic, they count as effects lost.
//   - That events are well formed in every respect. Payload, key, type, version, time, tenant and
//     id are compared with the outbox; further headers (traceparent) are not. Wrong amounts in the outbox
//     show in the statements, which are made from events.
//   - That repeats are few. Delivery is at least once: repeats are counted, and wrong only beyond
//     Sources.MostRepeated.
//
// # How to read a report
//
// Each line is ok, WRONG with up to three examples, or none when there was nothing to look at,
// which proves nothing. Then follow how many are wrong, and of how many. From the clients'
// history, left out without one:
//
//	acknowledged payments missing  a client was told of a payment, and it is missing or has another
//	                               amount, other accounts or another status; or of a capture, a
//	                               cancel or a refund that did not happen so
//	payments nobody asked for      a payment, capture, cancel or refund of a client in the history,
//	                               under a key that it never sent, or not of what it asked for
//	answers changed                a request got two different answers under its key, or another one
//	                               than is stored
//	reused keys accepted           two different requests under one key, and neither was refused
//	keys refused for nothing       "this key belongs to another request" for the only request sent
//	                               under it, or for the one that was answered
//	repeats not marked as such     two answers of a key that both claim to be the first
//
// From the tables:
//
//	keys that took effect twice    two effects or two stored answers of one key, closer together
//	                               than answers are kept
//	payments without their answer  a payment, or a change of one, with no answer about it under its
//	                               key, or an answer that tells of one that does not exist
//	payments without their event   a version of a payment, a refund or an account with no event in
//	                               the outbox, a last event that is not the payment's status, or an
//	                               event about none
//	illegal transitions            an event that may not follow the one before it, such as an expiry
//	                               after a capture
//	unbalanced payments            entries that are not what was captured, from the payment's source
//	                               to its destination, or that belong to no payment
//	unbalanced refunds             the same of a refund, or a payment that does not know the sum of
//	                               its refunds
//	payments across tenants        accounts of another tenant or in another currency, or an event
//	                               that names another tenant
//	wrong balances                 balance and entries of an account differ, entries have a gap, or
//	                               a customer was below zero
//	wrong holds                    an account does not hold the sum of its authorized payments and of
//	                               its refunds that are processing, or a customer holds more than it has
//	operations unlike payments     a payment by card, or a refund of one, without its one operation, or
//	                               not as the operation ended; an operation of neither
//
// From the PSP's books, left out without them:
//
//	charged twice                  two charges or two refunds that succeeded, of one operation
//	charged and not completed      one that succeeded, and our operation did not
//	completed and not charged      an operation that succeeded, and nothing in the PSP's books did
//	amounts unlike the PSP's       another amount, currency, reference, or charge that is refunded
//
// From the topics and the consumer's tables, left out without brokers:
//
//	events lost                    in the outbox and not on the topic
//	phantom events                 on the topic and not in the outbox: its transaction never
//	                               committed
//	events changed                 a record is not what its row says
//	events repeated too often      records beyond the first of their event and beyond the allowance
//	events out of order            first records not in the order of the rows, an aggregate in two
//	                               partitions, or a version left out
//	effects lost                   on the topic, and in neither the consumer's inbox nor its dead
//	                               letters
//	effects without event          in the inbox and not on the topic
//	statements differ from ledger  the consumer's totals are not what moved: an effect that happened
//	                               twice, or half
package invariant
