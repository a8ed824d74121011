// Package outbox writes events in the transaction that makes them true. They are published if and
// only if that transaction commits: package relay reads and sends them, in a process of its own.
//
// # To use it
//
// Update the aggregate's row, then call Append in the same transaction. The row lock makes events
// of one aggregate leave in the order of their commits; there is no order across aggregates. A
// writer that is not in Go inserts aggregate_type, aggregate_id, event_type and payload itself.
//
// The table has one partition for each day. Call KeepPartitions every few minutes: it makes those
// of the coming week and drops those that every relay has sent. If nothing called it for a week,
// Append fails with an error for which MissingDay is true: roll back, call MakePartitions, run the
// transaction again.
//
// # To copy it
//
// Take this folder without its tests and migrations/00003_outbox.sql, by goose or its part above
// "+goose Down". It needs pgx and uuid. To publish, take internal/relay as well.
//
// A login that does not own the tables needs these rights, as "writer" and "upkeep" do here:
//
//	GRANT INSERT ON outbox_events TO writer;
//	GRANT EXECUTE ON FUNCTION outbox_events_make_partitions TO writer;
//	GRANT EXECUTE ON FUNCTION outbox_events_make_partitions TO upkeep;
//	GRANT EXECUTE ON FUNCTION outbox_events_drop_partitions TO upkeep;
//
// Both functions run with the rights of their owner. Without EXECUTE, KeepPartitions fails with
// SQLSTATE 42501.
package outbox
