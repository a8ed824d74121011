-- Audits by time read the pages of that time, and no others. BRIN, since rows are in the order of time
-- but for payments that were captured or refunded later, whose rows move, and for space that the
-- archive freed, which new rows fill. A range keeps up to 32 values: one of last year
-- and one of today do not make it a range of all the time between, for good. See
-- docs/decisions/0008-archive-by-day.md.
-- oldest program: 8
-- +goose NO TRANSACTION
-- +goose Up
DROP INDEX CONCURRENTLY IF EXISTS payments_processed_at;
CREATE INDEX CONCURRENTLY payments_processed_at ON payments USING brin (processed_at timestamptz_minmax_multi_ops);
DROP INDEX CONCURRENTLY IF EXISTS ledger_entries_created_at;
CREATE INDEX CONCURRENTLY ledger_entries_created_at ON ledger_entries USING brin (created_at timestamptz_minmax_multi_ops);

-- +goose Down
DROP INDEX payments_processed_at, ledger_entries_created_at;
