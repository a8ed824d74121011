-- Money from outside: payments by card and their refunds go through a payment service provider (PSP).
-- As 00008, every change of a full table is of the catalog alone; 00011 does what takes long.
--
-- Programs of version 9 work on this schema, but know no cards: their refund of a card payment would
-- not reach the card, so a trigger makes it fail. Open the first clearing account when all programs are
-- of version 10.
-- oldest program: 8
-- +goose Up
ALTER TABLE accounts
    DROP CONSTRAINT accounts_kind_check,
    ADD CONSTRAINT accounts_kind_check CHECK (kind IN ('customer', 'system', 'clearing')) NOT VALID,
    DROP CONSTRAINT accounts_customer_not_negative,
    ADD CONSTRAINT accounts_customer_not_negative CHECK (kind <> 'customer' OR balance_minor >= 0) NOT VALID,
    DROP CONSTRAINT accounts_customer_available,
    ADD CONSTRAINT accounts_customer_available CHECK (kind <> 'customer' OR balance_minor - held_minor >= 0) NOT VALID;
COMMENT ON COLUMN accounts.kind IS
    'customer: never below zero. system: where money comes from, one per tenant and currency; it '
    'goes below zero by what was put into circulation. clearing: what came by card, one per tenant and '
    'currency; it goes below zero by what the PSP owes us.';
COMMENT ON COLUMN accounts.held_minor IS
    'The sum of amount_minor of the authorized payments from the account, and of the refunds from it '
    'that are processing. A customer spends no more than balance_minor - held_minor.';

ALTER TABLE payments
    ADD COLUMN payment_method text NOT NULL DEFAULT 'account',
    ADD COLUMN refunding_minor bigint NOT NULL DEFAULT 0,
    ADD COLUMN settled_at timestamptz,
    DROP CONSTRAINT payments_status_check,
    ADD CONSTRAINT payments_status_check CHECK (status IN ('authorized', 'processing', 'completed', 'canceled', 'expired', 'declined', 'failed')) NOT VALID,
    DROP CONSTRAINT payments_check1,
    ADD CONSTRAINT payments_decline_code CHECK ((status IN ('declined', 'failed')) = (decline_code <> '')) NOT VALID,
    DROP CONSTRAINT payments_refunded,
    ADD CONSTRAINT payments_refunded CHECK (refunded_minor = 0 AND refunding_minor = 0
        OR status = 'completed' AND refunded_minor >= 0 AND refunding_minor >= 0
           AND refunded_minor + refunding_minor <= amount_minor - released_minor) NOT VALID,
    DROP CONSTRAINT payments_authorization,
    ADD CONSTRAINT payments_authorization CHECK (
        CASE WHEN status = 'authorized' THEN authorization_expires_at IS NOT NULL AND authorization_ended_at IS NULL
             WHEN status IN ('declined', 'processing', 'failed') THEN authorization_ended_at IS NULL
             WHEN status = 'completed' THEN (authorization_expires_at IS NULL) = (authorization_ended_at IS NULL)
             ELSE authorization_expires_at IS NOT NULL AND authorization_ended_at IS NOT NULL END) NOT VALID,
    ADD CONSTRAINT payments_payment_method CHECK (payment_method IN ('account', 'card')) NOT VALID,
    ADD CONSTRAINT payments_by_card CHECK (
        CASE payment_method WHEN 'card' THEN authorization_expires_at IS NULL AND (status = 'processing') = (settled_at IS NULL)
                            ELSE status NOT IN ('processing', 'failed') AND settled_at IS NULL AND refunding_minor = 0 END) NOT VALID;
COMMENT ON COLUMN payments.payment_method IS
    'account: from one account to another. card: through the PSP, from the clearing account.';
COMMENT ON COLUMN payments.decline_code IS 'Why it was declined or has failed; empty if neither.';
COMMENT ON COLUMN payments.refunding_minor IS 'The sum of the refunds that are with the PSP.';
COMMENT ON COLUMN payments.settled_at IS 'When the PSP''s result was recorded. NULL: there is none yet, or no PSP.';

-- What goes back to a card was with the PSP before. A program of version 9 may still run, or again.
-- +goose StatementBegin
CREATE FUNCTION payments_refund_by_card() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'payment % came by card: its refund has to go through the PSP', NEW.id USING ERRCODE = '23514';
END $$;
-- +goose StatementEnd
CREATE TRIGGER payments_refund_by_card AFTER UPDATE ON payments FOR EACH ROW
    WHEN (NEW.payment_method = 'card' AND NEW.refunded_minor - OLD.refunded_minor > OLD.refunding_minor)
    EXECUTE FUNCTION payments_refund_by_card();

ALTER TABLE refunds
    ADD COLUMN settled_at timestamptz,
    DROP CONSTRAINT refunds_status_check,
    ADD CONSTRAINT refunds_status_check CHECK (status IN ('processing', 'completed', 'declined', 'failed')) NOT VALID,
    DROP CONSTRAINT refunds_check,
    ADD CONSTRAINT refunds_decline_code CHECK ((status IN ('declined', 'failed')) = (decline_code <> '')) NOT VALID,
    ADD CONSTRAINT refunds_settled CHECK (status <> 'processing' OR settled_at IS NULL) NOT VALID;
COMMENT ON TABLE refunds IS
    'One row per decided refund, declined ones included, as it ended. No foreign keys, as in payments.';
COMMENT ON COLUMN refunds.payment_version IS 'The version that the refund left its payment with when it was asked for.';
COMMENT ON COLUMN refunds.settled_at IS 'When the PSP''s result was recorded. NULL: there is none yet, or no PSP.';

CREATE TABLE psp_operations (
    id             uuid        PRIMARY KEY,
    tenant_id      uuid        NOT NULL,
    payment_id     uuid        NOT NULL,
    refund_id      uuid,
    kind           text        NOT NULL CHECK (kind IN ('charge', 'refund')),
    amount_minor   bigint      NOT NULL CHECK (amount_minor > 0),
    currency       text        NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    card_token     text        NOT NULL DEFAULT '',
    state          text        NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'unknown', 'succeeded', 'declined', 'failed')),
    tries          int         NOT NULL DEFAULT 0 CHECK (tries >= 0),
    token          bigint      NOT NULL DEFAULT 0 CHECK (token >= 0),
    next_try_at    timestamptz NOT NULL DEFAULT now(),
    first_tried_at timestamptz,
    reference      text        NOT NULL DEFAULT '',
    code           text        NOT NULL DEFAULT '',
    last_error     text        NOT NULL DEFAULT '',
    resolved_by    text        NOT NULL DEFAULT '',
    created_at     timestamptz NOT NULL,
    ended_at       timestamptz,
    traceparent    text,
    CHECK ((kind = 'refund') = (refund_id IS NOT NULL)),
    CHECK ((state IN ('succeeded', 'declined', 'failed')) = (ended_at IS NOT NULL)),
    CHECK ((state IN ('declined', 'failed')) = (code <> '')),
    CHECK ((tries = 0) = (first_tried_at IS NULL)),
    CHECK (state <> 'unknown' OR tries > 0)
) WITH (fillfactor = 70); -- a row is changed twice
CREATE INDEX psp_operations_due ON psp_operations (next_try_at) WHERE state IN ('pending', 'unknown');
CREATE UNIQUE INDEX psp_operations_charge ON psp_operations (payment_id) WHERE kind = 'charge';
CREATE UNIQUE INDEX psp_operations_refund ON psp_operations (refund_id) WHERE refund_id IS NOT NULL;
COMMENT ON TABLE psp_operations IS
    'What the PSP is asked to do, one row for each charge and each refund, written by the transaction '
    'that decided it. No call is made without such a row, and none with a transaction open.';
COMMENT ON COLUMN psp_operations.id IS
    'The Idempotency-Key of every call is derived from it, so all tries of one operation have the same.';
COMMENT ON COLUMN psp_operations.card_token IS 'What the client''s page got from the PSP in place of the card. Of a charge only.';
COMMENT ON COLUMN psp_operations.state IS
    'pending: never sent. unknown: it may have been sent, and executed; the result is not known. '
    'The others are the PSP''s result, which does not change any more.';
COMMENT ON COLUMN psp_operations.token IS 'Fencing token: goes up with every claim. Only the last claim may say when to try again.';
COMMENT ON COLUMN psp_operations.next_try_at IS
    'When a worker may claim it: also the end of a claim''s lease. infinity: it waits for an operator.';
COMMENT ON COLUMN psp_operations.first_tried_at IS
    'When its key was first used. A PSP forgets keys: after that time it is asked, not told.';
COMMENT ON COLUMN psp_operations.reference IS 'The PSP''s id of the charge or refund.';
COMMENT ON COLUMN psp_operations.resolved_by IS 'The operator who recorded the result; empty: the PSP said it.';
COMMENT ON COLUMN psp_operations.traceparent IS
    'W3C trace context of the request that led to it: calls and events continue its trace. NULL: not traced.';

ALTER TABLE psp_operations ENABLE ROW LEVEL SECURITY; -- for clients: nobody
CREATE POLICY every_tenant ON psp_operations TO api_write, worker USING (true) WITH CHECK (true);

-- The worker settles; so does the API when the PSP's webhook comes first.
GRANT SELECT, INSERT ON psp_operations TO api_write;
GRANT SELECT ON psp_operations TO worker;
GRANT UPDATE (state, tries, token, next_try_at, first_tried_at, reference, code, last_error, resolved_by, ended_at)
    ON psp_operations TO api_write, worker;
GRANT UPDATE (decline_code, refunding_minor, settled_at) ON payments TO api_write, worker;
GRANT UPDATE (status, decline_code, settled_at) ON refunds TO api_write, worker;
GRANT SELECT ON refunds TO worker;
GRANT INSERT ON ledger_entries TO worker;
ALTER POLICY every_tenant ON refunds TO api_write, worker;
ALTER POLICY every_tenant ON ledger_entries TO api_write, worker;

-- +goose Down
-- Version 9 would take such a payment for one between accounts.
-- +goose StatementBegin
DO $$
BEGIN
    IF EXISTS (SELECT FROM accounts WHERE kind = 'clearing') THEN
        RAISE EXCEPTION 'there are clearing accounts: version 9 has no place for payments by card'
            USING ERRCODE = '55000';
    END IF;
END $$;
-- +goose StatementEnd

ALTER POLICY every_tenant ON ledger_entries TO api_write;
ALTER POLICY every_tenant ON refunds TO api_write;
REVOKE INSERT ON ledger_entries FROM worker;
REVOKE ALL ON refunds FROM worker;
REVOKE UPDATE (status, decline_code, settled_at) ON refunds FROM api_write;
REVOKE UPDATE (decline_code, refunding_minor, settled_at) ON payments FROM api_write, worker;
DROP TABLE psp_operations;
DROP TRIGGER payments_refund_by_card ON payments;
DROP FUNCTION payments_refund_by_card;
ALTER TABLE refunds
    DROP COLUMN settled_at,
    DROP CONSTRAINT refunds_status_check,
    ADD CONSTRAINT refunds_status_check CHECK (status IN ('completed', 'declined')),
    DROP CONSTRAINT refunds_decline_code,
    ADD CONSTRAINT refunds_check CHECK ((status = 'declined') = (decline_code <> ''));
ALTER TABLE payments
    DROP CONSTRAINT payments_by_card,
    DROP CONSTRAINT payments_refunded,
    DROP CONSTRAINT payments_authorization,
    DROP CONSTRAINT payments_decline_code,
    DROP CONSTRAINT payments_status_check,
    DROP COLUMN payment_method, DROP COLUMN refunding_minor, DROP COLUMN settled_at,
    ADD CONSTRAINT payments_status_check CHECK (status IN ('authorized', 'completed', 'canceled', 'expired', 'declined')),
    ADD CONSTRAINT payments_check1 CHECK ((status = 'declined') = (decline_code <> '')),
    ADD CONSTRAINT payments_refunded CHECK (refunded_minor = 0 OR status = 'completed' AND refunded_minor BETWEEN 1 AND amount_minor - released_minor),
    ADD CONSTRAINT payments_authorization CHECK (
        CASE status WHEN 'authorized' THEN authorization_expires_at IS NOT NULL AND authorization_ended_at IS NULL
                    WHEN 'declined' THEN authorization_ended_at IS NULL
                    WHEN 'completed' THEN (authorization_expires_at IS NULL) = (authorization_ended_at IS NULL)
                    ELSE authorization_expires_at IS NOT NULL AND authorization_ended_at IS NOT NULL END);
ALTER TABLE accounts
    DROP CONSTRAINT accounts_kind_check,
    ADD CONSTRAINT accounts_kind_check CHECK (kind IN ('customer', 'system')),
    DROP CONSTRAINT accounts_customer_not_negative,
    ADD CONSTRAINT accounts_customer_not_negative CHECK (kind = 'system' OR balance_minor >= 0),
    DROP CONSTRAINT accounts_customer_available,
    ADD CONSTRAINT accounts_customer_available CHECK (kind = 'system' OR balance_minor - held_minor >= 0);
