-- Outbound webhooks: where tenants want events sent, and what is sent there. New tables only: the
-- programs of older versions go on as before and do not know them.
-- oldest program: 8
-- +goose Up
CREATE TABLE webhook_endpoints (
    id              uuid        NOT NULL,
    tenant_id       uuid        NOT NULL,
    url             text        NOT NULL CHECK (char_length(url) BETWEEN 1 AND 2000),
    event_types     text[]      NOT NULL DEFAULT '{}',
    state           text        NOT NULL DEFAULT 'enabled' CHECK (state IN ('enabled', 'disabled', 'deleted')),
    disabled_reason text        NOT NULL DEFAULT '' CHECK (disabled_reason IN ('', 'gone', 'failing')),
    event_count     bigint      NOT NULL DEFAULT 0,
    failing_since   timestamptz,
    state_since     timestamptz NOT NULL,
    resuming        boolean     NOT NULL DEFAULT false,
    secret          text        NOT NULL,
    previous_secret text,
    previous_until  timestamptz,
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (id),
    CHECK ((state = 'disabled') = (disabled_reason <> '')),
    CHECK ((previous_secret IS NULL) = (previous_until IS NULL))
);
CREATE INDEX webhook_endpoints_tenant ON webhook_endpoints (tenant_id, id);
COMMENT ON TABLE webhook_endpoints IS
    'Where tenants want events sent. A deleted one stays until its deliveries are gone: the API '
    'deletes no rows.';
COMMENT ON COLUMN webhook_endpoints.event_types IS 'Empty: all types.';
COMMENT ON COLUMN webhook_endpoints.event_count IS
    'How many events there are about the endpoint: the version of the aggregate.';
COMMENT ON COLUMN webhook_endpoints.failing_since IS
    'The first failure since the last success. NULL: the last call succeeded, or none was made.';
COMMENT ON COLUMN webhook_endpoints.disabled_reason IS
    'gone: it answered 410. failing: nothing has succeeded for three days.';
COMMENT ON COLUMN webhook_endpoints.resuming IS
    'It was enabled again, and the worker has yet to make due what waits for a later try.';
COMMENT ON COLUMN webhook_endpoints.secret IS
    'In plain text: each call is signed with it. Only the API''s writer and the worker may read it '
    'here. The answer that showed it is in idempotency_keys for as long as answers are kept.';
COMMENT ON COLUMN webhook_endpoints.previous_secret IS
    'Until previous_until calls are signed with it as well, so that receivers can change over.';

CREATE TABLE webhook_deliveries (
    id             bigint      GENERATED ALWAYS AS IDENTITY (CACHE 1),
    endpoint_id    uuid        NOT NULL,
    tenant_id      uuid        NOT NULL,
    event_id       uuid        NOT NULL,
    event_type     text        NOT NULL,
    subject        text        COLLATE "C" NOT NULL,
    body           bytea       NOT NULL,
    state          text        NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delivered', 'failed')),
    tries          int         NOT NULL DEFAULT 0,
    token          bigint      NOT NULL DEFAULT 0,
    in_flight      boolean     NOT NULL DEFAULT false,
    next_try_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    first_tried_at timestamptz,
    last_status    int         NOT NULL DEFAULT 0,
    last_error     text        NOT NULL DEFAULT '',
    created_at     timestamptz NOT NULL DEFAULT now(),
    ended_at       timestamptz,
    traceparent    text,
    PRIMARY KEY (id),
    CHECK ((state = 'pending') = (ended_at IS NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE UNIQUE INDEX webhook_deliveries_event ON webhook_deliveries (endpoint_id, event_id);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (endpoint_id, next_try_at, id) WHERE state = 'pending';
-- "+ 0": so that the first of a subject is read from here, never by walking the primary key.
CREATE INDEX webhook_deliveries_order ON webhook_deliveries (endpoint_id, subject, (id + 0)) WHERE state = 'pending';
COMMENT ON TABLE webhook_deliveries IS
    'An event that is to be sent to an endpoint, written in the transaction of the inbox. No foreign '
    'key: each would lock the endpoint''s row.';
COMMENT ON COLUMN webhook_deliveries.id IS
    'The order of the deliveries of one endpoint and subject.';
COMMENT ON COLUMN webhook_deliveries.subject IS
    'The aggregate that the event is about: a payment''s id. A delivery waits while an earlier one of '
    'its endpoint and subject is pending.';
COMMENT ON COLUMN webhook_deliveries.body IS 'The request''s body, the same in every try.';
COMMENT ON COLUMN webhook_deliveries.token IS
    'Of the last claim: only its holder may record a result.';
COMMENT ON COLUMN webhook_deliveries.in_flight IS
    'It is claimed, and no result has been recorded.';
COMMENT ON COLUMN webhook_deliveries.next_try_at IS
    'When it may be claimed. In flight: when the claim ends. Behind an earlier one: when to look again.';
COMMENT ON COLUMN webhook_deliveries.traceparent IS
    'W3C trace context of the event, which its calls continue. NULL: not traced.';
COMMENT ON COLUMN webhook_deliveries.last_error IS
    'Our own words. What the endpoint answered is not kept: it would show a tenant what a call into '
    'our network returned.';

ALTER TABLE webhook_endpoints ENABLE ROW LEVEL SECURITY;
ALTER TABLE webhook_deliveries ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON webhook_endpoints FOR SELECT TO api_read
    USING (tenant_id = nullif(current_setting('oncepay.tenant', true), '')::uuid);
CREATE POLICY own_tenant ON webhook_deliveries FOR SELECT TO api_read
    USING (tenant_id::text = current_setting('oncepay.tenant', true)); -- as text: see payments
CREATE POLICY every_tenant ON webhook_endpoints TO api_write, worker USING (true) WITH CHECK (true);
CREATE POLICY every_tenant ON webhook_deliveries TO api_write, worker USING (true) WITH CHECK (true);

-- api_read sees no secret and no body.
GRANT SELECT (id, tenant_id, url, event_types, state, disabled_reason, state_since, failing_since, created_at)
    ON webhook_endpoints TO api_read;
GRANT SELECT (id, endpoint_id, tenant_id, event_id, event_type, subject, state, tries, next_try_at,
    last_status, last_error, created_at, ended_at) ON webhook_deliveries TO api_read;
GRANT SELECT, INSERT ON webhook_endpoints TO api_write;
GRANT UPDATE (state, disabled_reason, state_since, failing_since, resuming, secret,
    previous_secret, previous_until)
    ON webhook_endpoints TO api_write;
GRANT SELECT ON webhook_deliveries TO api_write;
GRANT UPDATE (state, tries, next_try_at, first_tried_at, ended_at) ON webhook_deliveries TO api_write;

-- worker: consumes events, sends them, and clears away what is old.
GRANT SELECT, DELETE ON webhook_endpoints TO worker;
GRANT UPDATE (state, disabled_reason, state_since, failing_since, resuming, event_count)
    ON webhook_endpoints TO worker;
GRANT SELECT, INSERT, DELETE ON webhook_deliveries TO worker;
GRANT UPDATE (state, tries, token, in_flight, next_try_at, first_tried_at, last_status, last_error, ended_at)
    ON webhook_deliveries TO worker;
GRANT SELECT, INSERT ON inbox_events TO worker;
GRANT SELECT, INSERT, UPDATE ON inbox_dead_letters TO worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON inbox_sequences TO worker;
GRANT SELECT ON inbox_horizon TO worker;
GRANT EXECUTE ON FUNCTION inbox_events_make_partitions, inbox_events_drop_partitions TO worker;

-- +goose Down
REVOKE EXECUTE ON FUNCTION inbox_events_make_partitions, inbox_events_drop_partitions FROM worker;
REVOKE ALL ON inbox_events, inbox_dead_letters, inbox_sequences, inbox_horizon FROM worker;
DROP TABLE webhook_deliveries;
DROP TABLE webhook_endpoints;
