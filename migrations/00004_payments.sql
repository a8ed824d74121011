-- +goose Up
CREATE TABLE accounts (
    id            uuid        PRIMARY KEY,
    tenant_id     uuid        NOT NULL,
    kind          text        NOT NULL CHECK (kind IN ('customer', 'system')),
    currency      text        COLLATE "C" NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    name          text        NOT NULL DEFAULT '' CHECK (char_length(name) <= 100),
    balance_minor bigint      NOT NULL DEFAULT 0,
    entry_count   bigint      NOT NULL DEFAULT 0 CHECK (entry_count >= 0),
    created_at    timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT accounts_customer_not_negative CHECK (kind = 'system' OR balance_minor >= 0)
) WITH (
    fillfactor = 70, -- room on the page: a balance is updated in place, without touching an index
    autovacuum_vacuum_scale_factor = 0.02
);
CREATE UNIQUE INDEX accounts_one_system ON accounts (tenant_id, currency) WHERE kind = 'system';
COMMENT ON TABLE accounts IS
    'Money by tenant and currency. A balance is the sum of the account''s ledger entries, kept '
    'here so that a payment reads one row.';
COMMENT ON COLUMN accounts.kind IS
    'customer: never below zero. system: where money comes from, one per tenant and currency; it '
    'goes below zero by what was put into circulation.';
COMMENT ON COLUMN accounts.balance_minor IS 'In minor units of the currency: 25000 is 250.00 USD.';
COMMENT ON COLUMN accounts.entry_count IS
    'The number of ledger entries of the account, and of the last one.';

CREATE TABLE payments (
    id                  uuid        NOT NULL,
    tenant_id           uuid        NOT NULL,
    status              text        COLLATE "C" NOT NULL CHECK (status IN ('completed', 'declined')),
    decline_code        text        NOT NULL DEFAULT '',
    version             bigint      NOT NULL CHECK (version > 0),
    amount_minor        bigint      NOT NULL CHECK (amount_minor > 0),
    currency            text        NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    source_account      uuid        NOT NULL,
    destination_account uuid        NOT NULL,
    description         text        NOT NULL DEFAULT '' CHECK (char_length(description) <= 500),
    metadata            jsonb       NOT NULL DEFAULT '{}',
    client_reference    text        NOT NULL DEFAULT '' CHECK (char_length(client_reference) <= 255),
    processed_at        timestamptz NOT NULL,
    client_id           uuid        NOT NULL,
    idempotency_key     text        COLLATE "C" NOT NULL,
    fingerprint         bytea       NOT NULL,
    fingerprint_version smallint    NOT NULL,
    method              text        NOT NULL,
    route               text        NOT NULL,
    request_id          text        NOT NULL,
    PRIMARY KEY (tenant_id, id),
    CHECK (source_account <> destination_account),
    CHECK ((status = 'declined') = (decline_code <> ''))
) WITH (
    -- It only grows. By shares of itself it would be vacuumed ever more seldom, and then for hours.
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500000,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_freeze_min_age = 0 -- a page that is full stays as it is: freeze it when it is seen first
);
CREATE INDEX payments_source ON payments (source_account, id);
CREATE INDEX payments_destination ON payments (destination_account, id);
COMMENT ON TABLE payments IS
    'One row per decided payment, declined ones included. No foreign key to accounts: they were '
    'read under lock in the same transaction, and the check would lock them again. None to '
    'tenants: every payment of a tenant would lock the same row. The tenant comes first in the '
    'primary key: with an index on the id alone, Postgres read one tenant''s list of payments '
    'through those of all tenants.';
COMMENT ON COLUMN payments.id IS
    'UUIDv7 made from processed_at, so that the order of ids is the order of time and lists need '
    'no further index.';
COMMENT ON COLUMN payments.version IS 'Goes up by one with every event of the payment.';
COMMENT ON COLUMN payments.decline_code IS 'Why it was declined; empty if it was not.';
COMMENT ON COLUMN payments.processed_at IS
    'When it was decided, by the database clock, to the millisecond.';
COMMENT ON COLUMN payments.idempotency_key IS
    'Audit: the key of the request. Kept for good, long after idempotency_keys has dropped the '
    'day.';
COMMENT ON COLUMN payments.fingerprint IS
    'Audit: the fingerprint of the request, by the rules of fingerprint_version.';

CREATE TABLE ledger_entries (
    account_id          uuid        NOT NULL,
    tenant_id           uuid        NOT NULL,
    entry_no            bigint      NOT NULL CHECK (entry_no > 0),
    id                  uuid        NOT NULL,
    payment_id          uuid        NOT NULL,
    currency            text        NOT NULL,
    amount_minor        bigint      NOT NULL CHECK (amount_minor <> 0),
    balance_after_minor bigint      NOT NULL,
    created_at          timestamptz NOT NULL,
    PRIMARY KEY (account_id, entry_no)
) WITH (
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_freeze_min_age = 0 -- see payments
);
COMMENT ON TABLE ledger_entries IS
    'Double entry: two or more per payment, which sum to zero. Insert-only. No foreign key to '
    'accounts (measured: 40 % of the throughput): the account was locked and read in the same '
    'transaction, and the invariant queries prove what the key would enforce.';
COMMENT ON COLUMN ledger_entries.tenant_id IS
    'That of the account. Not in the key: an account''s entries are read by its id, a tenant''s through '
    'its accounts.';
COMMENT ON COLUMN ledger_entries.entry_no IS
    '1, 2, 3 … for each account without a gap: the order in which they were applied.';
COMMENT ON COLUMN ledger_entries.amount_minor IS
    'Signed: what it adds to the balance of the account.';

-- +goose StatementBegin
CREATE FUNCTION ledger_entries_insert_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'ledger entries are insert-only: correct a payment with another one' USING ERRCODE = '42501';
END $$;
-- +goose StatementEnd
CREATE TRIGGER ledger_entries_insert_only BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_entries
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_entries_insert_only();

-- +goose Down
DROP TABLE ledger_entries;
DROP FUNCTION ledger_entries_insert_only;
DROP TABLE payments;
DROP TABLE accounts;
