-- The worker compares balances with the newest ledger entries. Programs of the version before do not
-- mind.
-- oldest program: 8
-- +goose Up
GRANT SELECT ON ledger_entries TO worker;

-- +goose Down
REVOKE SELECT ON ledger_entries FROM worker;
