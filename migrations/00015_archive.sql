-- Old days of payments and ledger entries leave the database: `oncepay archive`. An older worker would
-- call accounts wrong whose entries have left, so archive nothing until every worker knows openings.
-- oldest program: 8
-- +goose Up
CREATE TABLE ledger_openings (
    account_id    uuid   PRIMARY KEY,
    tenant_id     uuid   NOT NULL,
    entry_no      bigint NOT NULL CHECK (entry_no > 0),
    balance_minor bigint NOT NULL
);
COMMENT ON TABLE ledger_openings IS
    'What archived entries carry forward, one row for each account that has some: the history of the '
    'account begins behind entry_no, with balance_minor.';
COMMENT ON COLUMN ledger_openings.entry_no IS
    'Of the last archived entry. Entries up to it are in the archive, and are being deleted.';

CREATE TABLE archived_days (
    day         date        PRIMARY KEY,
    payments    bigint      NOT NULL,
    entries     bigint      NOT NULL,
    manifest    bytea       NOT NULL CHECK (length(manifest) = 32),
    archived_at timestamptz NOT NULL DEFAULT now(),
    deleted_at  timestamptz
);
COMMENT ON TABLE archived_days IS
    'UTC days whose payments and entries are in the archive: without a gap, the oldest first. The '
    'books in this database begin on the day after the last one.';
COMMENT ON COLUMN archived_days.manifest IS 'SHA-256 of the manifest, which has those of the files.';

-- +goose StatementBegin
CREATE FUNCTION first_id(at timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT rpad(lpad(to_hex(ceil(extract(epoch FROM at) * 1000)::bigint), 12, '0'), 32, '0')::uuid
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION first_id IS
    'The lowest id that a payment at this time or later can have: a range of time is a range of ids.';

-- +goose StatementBegin
CREATE FUNCTION books_begin() RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT coalesce(((max(day) + 1)::timestamp AT TIME ZONE 'utc'), timestamptz 'epoch') FROM archived_days
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION books_begin IS 'Payments and entries from before are in the archive.';

-- An entry may go once the opening of its account carries it.
-- +goose StatementBegin
CREATE FUNCTION ledger_entries_archived_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM gone g LEFT JOIN ledger_openings o USING (account_id)
               WHERE (g.entry_no <= o.entry_no) IS NOT TRUE) THEN
        RAISE EXCEPTION 'ledger entries are insert-only: correct a payment with another one' USING ERRCODE = '42501';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
DROP TRIGGER ledger_entries_insert_only ON ledger_entries;
CREATE TRIGGER ledger_entries_insert_only BEFORE UPDATE OR TRUNCATE ON ledger_entries
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_entries_insert_only();
CREATE TRIGGER ledger_entries_archived_only AFTER DELETE ON ledger_entries
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION ledger_entries_archived_only();

GRANT SELECT ON ledger_openings TO worker;

-- +goose Down
-- What was archived could not be told from what was lost.
-- +goose StatementBegin
DO $$
BEGIN
    IF EXISTS (SELECT FROM archived_days) THEN
        RAISE EXCEPTION 'days were archived: version 14 has no place for the openings of their accounts'
            USING ERRCODE = '55000';
    END IF;
END $$;
-- +goose StatementEnd
DROP TRIGGER ledger_entries_archived_only ON ledger_entries;
DROP TRIGGER ledger_entries_insert_only ON ledger_entries;
CREATE TRIGGER ledger_entries_insert_only BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_entries
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_entries_insert_only();
DROP FUNCTION ledger_entries_archived_only;
DROP FUNCTION books_begin;
DROP FUNCTION first_id;
DROP TABLE archived_days;
DROP TABLE ledger_openings;
