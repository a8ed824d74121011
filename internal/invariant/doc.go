// Package invariant counts what was lost, doubled, reordered, changed or out of balance, after the fact and from outside: from the
// tables, from one full scan of the topics, and from what clients wrote down. It asks no program and imports none of them.
//
// For whom: whoever wants to trust the service. The demo and the tests of crashes end with it. No command runs it against a
// service of yours; copy a single query for that: each is a constant of its own that lists what is wrong, and nothing when all
// is well (those that name topic_records, exchanges or bounds need what check.go copies there).
//
// # What is promised
//
//   - What is compared was all read: every committed record of the topics up to where they ended when the check began, every row
//     of the tables in one snapshot taken after that, every line of the histories. What cannot be read is an error, not a
//     smaller count. A role that may not see every row gets an error, too.
//   - A defect turns the line red that is about it. One that breaks several promises turns several red.
//   - Nothing is changed. It works in temporary tables, on one connection that it takes out of the pool and closes. That one may take
//     half a gigabyte of the server's memory.
//   - A million payments are checked in under a minute: 46 s with Apache Kafka 4.3 and Postgres 17, 42 s with the embedded servers,
//     all of it on two shared cores (BenchmarkCheckOfAMillionPayments, with a history of 1,250,000 attempts).
//
// # What is not
//
//   - That the service was quiet. What is still on its way counts as lost: let backlog and lag come to zero first.
//   - That what was dropped for its age was right. Answers are looked at as long as they are promised, events since the oldest
//     day of the outbox, and where topics have deleted records only what is younger than the oldest that is left in every
//     partition. A topic with a partition that has lost all of its records proves nothing lost: watch Line.Of.
//   - That the inbox was kept long enough. docs/operating.md lets old rows of inbox_events be deleted; where their records are still
//     on the topic, they count as effects lost.
//   - That events look as they should: payload, key, type, version, time and id are compared with the outbox, further headers
//     (traceparent) are not. That the outbox tells the truth about amounts shows in the statements, which are made from events.
//   - That repeats are few. Delivery is at least once: they are counted, and wrong when they are more than Sources.MostRepeated.
//
// # How to read a report
//
// Of each line: ok, WRONG with up to three examples, or none when there was nothing to look at, which proves nothing. Then how many are
// wrong, and of how many. From the clients' history, left out without one:
//
//	acknowledged payments missing  a client was told of a payment, and it is not there, or not with this amount, these accounts and this status
//	payments nobody asked for      a payment of a client that is in the history, under a key that it never sent, or not of what it asked for
//	answers changed                a request got two different answers under its key, or another one than is stored
//	reused keys accepted           two different requests under one key, and neither was refused for it
//	keys refused for nothing       "this key belongs to another request" for the only request that was sent under it, or the one that was answered
//	repeats not marked as such     two answers of a key that say that they are the first
//
// From the tables:
//
//	keys that took effect twice    two payments or two stored answers of one key, closer together than answers are kept
//	payments without their answer  a payment and no answer under its key that is about it, or an answer that tells of a payment that is not there
//	payments without their event   a payment or an account and no event in the outbox, or an event about none
//	unbalanced payments            entries that are not the payment's amount from its source to its destination, or are of none
//	payments across tenants        accounts of another tenant or in another currency
//	wrong balances                 balance and entries of an account differ, entries have a gap, a customer was below zero
//
// From the topics, and from what a consumer made of them, left out without brokers:
//
//	events lost                    in the outbox and not on the topic
//	phantom events                 on the topic and not in the outbox: its transaction never committed
//	events changed                 a record is not what its row says
//	events repeated too often      records beyond the first of their event, and beyond what may be
//	events out of order            first records not in the order of the rows, an aggregate in two partitions, a version left out
//	effects lost                   on the topic, and neither the consumer's inbox nor its dead letters know it
//	effects without event          in the inbox and not on the topic
//	statements differ from ledger  what the consumer added up is not what moved: an effect that happened twice, or half
package invariant
