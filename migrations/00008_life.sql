-- The whole life of a payment: holds, captures, refunds. It runs on a full database while the programs
-- of version 7 work: every change is of the catalog alone, so no table is read or rewritten. 00009
-- does what takes long. Measured with 10 million payments while four clients paid, on two busy cores:
-- this file took 1.7 s, an upper bound for its ACCESS EXCLUSIVE locks, and the longest payment 0.8 s
-- (0.4 s without us).
-- oldest program: 8
-- +goose Up
ALTER TABLE accounts
    ADD COLUMN held_minor bigint NOT NULL DEFAULT 0,
    ADD CONSTRAINT accounts_held_not_negative CHECK (held_minor >= 0) NOT VALID,
    ADD CONSTRAINT accounts_customer_available CHECK (kind = 'system' OR balance_minor - held_minor >= 0) NOT VALID;
COMMENT ON COLUMN accounts.held_minor IS
    'The sum of amount_minor of the account''s authorized payments. A customer spends no more than '
    'balance_minor - held_minor.';

-- Programs of version 7 write no such columns, so 0 must be right for them: an old payment was
-- completed in full, or declined.
ALTER TABLE payments
    ADD COLUMN released_minor bigint NOT NULL DEFAULT 0,
    ADD COLUMN refunded_minor bigint NOT NULL DEFAULT 0,
    ADD COLUMN authorization_expires_at timestamptz,
    ADD COLUMN authorization_ended_at timestamptz,
    DROP CONSTRAINT payments_status_check,
    ADD CONSTRAINT payments_status_check CHECK (status IN ('authorized', 'completed', 'canceled', 'expired', 'declined')) NOT VALID,
    ADD CONSTRAINT payments_released CHECK (released_minor = 0 OR status = 'completed' AND released_minor BETWEEN 1 AND amount_minor - 1) NOT VALID,
    ADD CONSTRAINT payments_refunded CHECK (refunded_minor = 0 OR status = 'completed' AND refunded_minor BETWEEN 1 AND amount_minor - released_minor) NOT VALID,
    ADD CONSTRAINT payments_authorization CHECK (
        CASE status WHEN 'authorized' THEN authorization_expires_at IS NOT NULL AND authorization_ended_at IS NULL
                    WHEN 'declined' THEN authorization_ended_at IS NULL
                    WHEN 'completed' THEN (authorization_expires_at IS NULL) = (authorization_ended_at IS NULL)
                    ELSE authorization_expires_at IS NOT NULL AND authorization_ended_at IS NOT NULL END) NOT VALID;
COMMENT ON TABLE payments IS
    'One row per decided payment, declined ones included, as its last command left it. No foreign '
    'key to accounts: they were read under lock in the same transaction, and the check would lock '
    'them again. None to tenants: every payment of a tenant would lock the same row. The tenant '
    'comes first in the primary key: with an index on the id alone, Postgres read one tenant''s list '
    'of payments through those of all tenants.';
COMMENT ON COLUMN payments.released_minor IS
    'What a capture left of the amount: captured is amount_minor - released_minor if completed, else 0.';
COMMENT ON COLUMN payments.refunded_minor IS 'The sum of the completed refunds.';
COMMENT ON COLUMN payments.authorization_expires_at IS
    'Until when the held amount can be captured. NULL: the money moved at once.';
COMMENT ON COLUMN payments.authorization_ended_at IS
    'When it was captured, canceled or expired.';

ALTER TABLE ledger_entries ADD COLUMN refund_id uuid;
COMMENT ON COLUMN ledger_entries.refund_id IS 'Of the refund, if the entry belongs to one.';

CREATE TABLE refunds (
    id                  uuid        NOT NULL,
    tenant_id           uuid        NOT NULL,
    payment_id          uuid        NOT NULL,
    payment_version     bigint      NOT NULL CHECK (payment_version > 1),
    status              text        NOT NULL CHECK (status IN ('completed', 'declined')),
    decline_code        text        NOT NULL DEFAULT '',
    amount_minor        bigint      NOT NULL CHECK (amount_minor > 0),
    currency            text        NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    source_account      uuid        NOT NULL,
    destination_account uuid        NOT NULL,
    reason              text        NOT NULL DEFAULT '' CHECK (char_length(reason) <= 500),
    metadata            jsonb       NOT NULL DEFAULT '{}',
    processed_at        timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id),
    CHECK ((status = 'declined') = (decline_code <> ''))
);
CREATE UNIQUE INDEX refunds_payment ON refunds (payment_id, payment_version);
COMMENT ON TABLE refunds IS
    'One row per decided refund, declined ones included. No foreign keys, as in payments.';
COMMENT ON COLUMN refunds.payment_version IS 'The version that the refund left its payment with.';
COMMENT ON COLUMN refunds.source_account IS 'Who gives the money back: the destination of the payment.';

CREATE TABLE payment_commands (
    tenant_id           uuid        NOT NULL,
    payment_id          uuid        NOT NULL,
    version             bigint      NOT NULL,
    client_id           uuid        NOT NULL,
    idempotency_key     text        COLLATE "C" NOT NULL,
    fingerprint         bytea       NOT NULL,
    fingerprint_version smallint    NOT NULL,
    method              text        NOT NULL,
    route               text        NOT NULL,
    request_id          text        NOT NULL,
    processed_at        timestamptz NOT NULL,
    PRIMARY KEY (payment_id, version)
);
COMMENT ON TABLE payment_commands IS
    'Audit: who captured, canceled or refunded a payment, and with which request. payments has the '
    'first command. An expiry has no client, so no row.';

ALTER TABLE refunds ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON refunds FOR SELECT TO api_read
    USING (tenant_id::text = current_setting('oncepay.tenant', true)); -- as text: see payments
CREATE POLICY every_tenant ON refunds TO api_write USING (true) WITH CHECK (true);
ALTER TABLE payment_commands ENABLE ROW LEVEL SECURITY; -- for clients: nobody
CREATE POLICY every_tenant ON payment_commands TO api_write USING (true) WITH CHECK (true);

GRANT UPDATE (held_minor) ON accounts TO api_write;
GRANT UPDATE (status, version, released_minor, refunded_minor, authorization_ended_at) ON payments TO api_write;
GRANT INSERT ON refunds, payment_commands TO api_write;
GRANT SELECT ON refunds TO api_read, api_write; -- api_write, too: an API may read through its write pool

-- worker: releases what has expired, through the statements of the one transaction.
-- +goose StatementBegin
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'worker') THEN
        CREATE ROLE worker NOLOGIN;
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL; -- a concurrent migration created it
END $$;
-- +goose StatementEnd
GRANT SELECT ON accounts, payments TO worker;
GRANT UPDATE (held_minor, balance_minor, entry_count) ON accounts TO worker; -- all that updateBalances names
GRANT UPDATE (status, version, released_minor, refunded_minor, authorization_ended_at) ON payments TO worker;
GRANT INSERT ON outbox_events TO worker;
GRANT EXECUTE ON FUNCTION outbox_events_make_partitions TO worker;
ALTER POLICY every_tenant ON accounts TO api_write, worker;
ALTER POLICY every_tenant ON payments TO api_write, worker;

GRANT SELECT ON goose_db_version, schema_files TO worker;

-- +goose Down
ALTER POLICY every_tenant ON accounts TO api_write;
ALTER POLICY every_tenant ON payments TO api_write;

-- Version 7 would show such a payment as one that moved in full, and its refunds nowhere.
-- +goose StatementBegin
DO $$
BEGIN
    IF EXISTS (SELECT FROM payments WHERE version > 1 OR status = 'authorized') THEN
        RAISE EXCEPTION 'payments are held, or were captured, canceled, expired or refunded: version 7 has no place for that'
            USING ERRCODE = '55000';
    END IF;
END $$;
-- +goose StatementEnd

DROP OWNED BY worker; -- in this database; the role itself stays
REVOKE UPDATE (held_minor) ON accounts FROM api_write;
REVOKE UPDATE (status, version, released_minor, refunded_minor, authorization_ended_at) ON payments FROM api_write;
DROP TABLE payment_commands;
DROP TABLE refunds;
ALTER TABLE ledger_entries DROP COLUMN refund_id;
ALTER TABLE payments
    DROP COLUMN released_minor, DROP COLUMN refunded_minor,
    DROP COLUMN authorization_expires_at, DROP COLUMN authorization_ended_at,
    DROP CONSTRAINT payments_status_check,
    ADD CONSTRAINT payments_status_check CHECK (status IN ('completed', 'declined'));
ALTER TABLE accounts DROP COLUMN held_minor;
