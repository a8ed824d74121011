-- What each program may do, and no more. Roles belong to the cluster: they may exist already (with
-- LOGIN and a password of the operator's choice, or from another database), and two migrations may
-- run at once.
-- +goose Up
-- +goose StatementBegin
DO $$
DECLARE r text;
BEGIN
    FOREACH r IN ARRAY ARRAY['api_write', 'api_read', 'relay', 'consumer'] LOOP
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = r) THEN
                EXECUTE format('CREATE ROLE %I NOLOGIN', r);
            END IF;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL; -- a concurrent migration created it
        END;
    END LOOP;
END $$;
-- +goose StatementEnd

-- The functions run as their owner, so no other role may create objects on their search path.
REVOKE CREATE ON SCHEMA public FROM PUBLIC;

-- api_write: the one transaction. It deletes nothing, and changes nothing but balances.
GRANT SELECT ON tenants, clients, credentials TO api_write;
GRANT SELECT, INSERT ON accounts, payments, ledger_entries, idempotency_keys TO api_write;
GRANT UPDATE (balance_minor, entry_count) ON accounts TO api_write;
GRANT INSERT ON outbox_events TO api_write;
GRANT SELECT, INSERT, UPDATE ON idempotency_retention TO api_write;
GRANT EXECUTE ON FUNCTION idempotency_keys_make_partitions, outbox_events_make_partitions TO api_write;

-- api_read: what GET shows, the tenant's own rows only. Without a tenant a query finds nothing.
GRANT SELECT ON accounts, payments, ledger_entries, idempotency_keys, idempotency_retention TO api_read;
ALTER TABLE accounts ENABLE ROW LEVEL SECURITY;
ALTER TABLE payments ENABLE ROW LEVEL SECURITY;
ALTER TABLE ledger_entries ENABLE ROW LEVEL SECURITY;
ALTER TABLE idempotency_keys ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON accounts FOR SELECT TO api_read
    USING (tenant_id = nullif(current_setting('oncepay.tenant', true), '')::uuid);
-- As text, which no index covers: otherwise one account's payments may be read by the primary key,
-- through all payments of the tenant.
CREATE POLICY own_tenant ON payments FOR SELECT TO api_read
    USING (tenant_id::text = current_setting('oncepay.tenant', true));
CREATE POLICY own_tenant ON idempotency_keys FOR SELECT TO api_read
    USING (tenant_id = nullif(current_setting('oncepay.tenant', true), '')::uuid);
CREATE POLICY own_tenant ON ledger_entries FOR SELECT TO api_read
    USING (tenant_id::text = current_setting('oncepay.tenant', true)); -- as text: see payments
-- A write batch spans tenants: there the statements isolate them.
CREATE POLICY every_tenant ON accounts TO api_write USING (true) WITH CHECK (true);
CREATE POLICY every_tenant ON payments TO api_write USING (true) WITH CHECK (true);
CREATE POLICY every_tenant ON ledger_entries TO api_write USING (true) WITH CHECK (true);
CREATE POLICY every_tenant ON idempotency_keys TO api_write USING (true) WITH CHECK (true);

-- relay: reads the outbox, keeps its cursor, and keeps partitions through the functions that their
-- packages bring.
GRANT SELECT ON outbox_events TO relay;
GRANT SELECT ON SEQUENCE outbox_events_id_seq TO relay; -- relay adopt
GRANT SELECT, INSERT, UPDATE ON outbox_cursors, outbox_dead_letters TO relay;
GRANT EXECUTE ON FUNCTION outbox_events_make_partitions, outbox_events_drop_partitions TO relay;
GRANT EXECUTE ON FUNCTION idempotency_keys_make_partitions, idempotency_keys_drop_partitions TO relay;

-- consumer: another team's service, which sees only its own tables.
GRANT SELECT, INSERT ON inbox_events TO consumer;
GRANT SELECT, INSERT, UPDATE ON inbox_dead_letters TO consumer;
GRANT SELECT, INSERT, UPDATE, DELETE ON inbox_sequences TO consumer;
GRANT SELECT ON inbox_horizon TO consumer;
GRANT EXECUTE ON FUNCTION inbox_events_make_partitions, inbox_events_drop_partitions TO consumer;
GRANT SELECT, INSERT, UPDATE ON statements TO consumer;

-- Every program checks the schema's version when it starts.
GRANT SELECT ON goose_db_version, schema_files TO api_write, api_read, relay, consumer;

-- +goose Down
DROP POLICY every_tenant ON accounts;
DROP POLICY every_tenant ON payments;
DROP POLICY every_tenant ON ledger_entries;
DROP POLICY every_tenant ON idempotency_keys;
DROP POLICY own_tenant ON accounts;
DROP POLICY own_tenant ON payments;
DROP POLICY own_tenant ON ledger_entries;
DROP POLICY own_tenant ON idempotency_keys;
ALTER TABLE accounts DISABLE ROW LEVEL SECURITY;
ALTER TABLE payments DISABLE ROW LEVEL SECURITY;
ALTER TABLE ledger_entries DISABLE ROW LEVEL SECURITY;
ALTER TABLE idempotency_keys DISABLE ROW LEVEL SECURITY;
DROP OWNED BY api_write, api_read, relay, consumer; -- in this database; the roles themselves stay
