-- +goose Up
CREATE TABLE idempotency_keys (
    tenant_id           uuid        NOT NULL,
    client_id           uuid        NOT NULL,
    key                 text        COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 255),
    key_hash            bytea       NOT NULL CHECK (octet_length(key_hash) = 16),
    day                 date        NOT NULL DEFAULT (now() AT TIME ZONE 'utc')::date,
    fingerprint         bytea       NOT NULL CHECK (octet_length(fingerprint) = 32),
    fingerprint_version smallint    NOT NULL,
    request_id          text        NOT NULL,
    created_at          timestamptz NOT NULL DEFAULT now(),
    status              smallint    NOT NULL CHECK (status BETWEEN 200 AND 499),
    content_type        text        NOT NULL,
    location            text        NOT NULL,
    body                bytea       NOT NULL,
    PRIMARY KEY (key_hash, day)
) PARTITION BY RANGE (day);
COMMENT ON TABLE idempotency_keys IS
    'One row per key that was answered, complete with its answer, written in the transaction that '
    'did the work. A row is never updated; old days are dropped whole.';
COMMENT ON COLUMN idempotency_keys.key_hash IS
    'First 128 bits of SHA-256(tenant_id, client_id, key), by which a key is found: '
    'substr(sha256(uuid_send(tenant_id) || uuid_send(client_id) || convert_to(key, ''UTF8'')), 1, '
    '16). An index on the three themselves would be more than twice as large, and keys are '
    'random: it has to stay in memory.';
COMMENT ON COLUMN idempotency_keys.day IS
    'UTC day of created_at by the database clock. The primary key is a backstop within one day '
    'only: what makes a key take effect once is the advisory lock that the claim holds.';
COMMENT ON COLUMN idempotency_keys.fingerprint IS
    'SHA-256 of the request as the program understood it, by the rules of fingerprint_version.';
COMMENT ON COLUMN idempotency_keys.request_id IS 'X-Request-Id of the attempt that did the work.';
COMMENT ON COLUMN idempotency_keys.location IS 'Location header of the answer; empty: it had none.';
COMMENT ON COLUMN idempotency_keys.body IS
    'The answer byte for byte. bytea, because jsonb would reorder members and lose white space.';

-- Each day's partition is made with LIKE, so it inherits what is set here.
-- +goose StatementBegin
DO $$ BEGIN
    ALTER TABLE idempotency_keys ALTER COLUMN body SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
    NULL; -- a server built without lz4 compresses with pglz
END $$;
-- +goose StatementEnd

CREATE TABLE idempotency_retention (
    only_row boolean  PRIMARY KEY DEFAULT true CHECK (only_row),
    keep     interval NOT NULL CHECK (keep BETWEEN '24 hours' AND '720 hours')
);
COMMENT ON TABLE idempotency_retention IS
    'How long answers are kept: the longest time that any program has promised. Every look-up '
    'goes back so far and no younger partition is dropped, whatever a program is configured to. '
    'Without a row nothing is dropped. It is lowered by hand, when the old time has passed since '
    'the last program promised it.';

-- There is no default partition: a row would have to move out of it, and a statement that was
-- planned before the move would miss it. A writer whose day is missing gets 23514, makes the day
-- with this function and runs its transaction again.
--
-- LIKE and ATTACH take SHARE UPDATE EXCLUSIVE on the parent, which conflicts neither with readers
-- nor writers nor pg_dump. PARTITION OF would wait for all of them, and block those behind it.
-- +goose StatementBegin
CREATE FUNCTION idempotency_keys_make_day(d date) RETURNS int
    LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
DECLARE
    part text := 'idempotency_keys_' || to_char(d, 'YYYYMMDD');
BEGIN
    IF EXISTS (SELECT FROM pg_inherits
               WHERE inhparent = 'idempotency_keys'::regclass AND inhrelid = to_regclass(part)) THEN
        RETURN 0;
    END IF;

    -- Inserted, read and dropped: vacuum finds nothing to do here but freezing, which a partition
    -- that is kept for long needs once, whole. LIKE copies no options.
    EXECUTE format('CREATE TABLE %I (LIKE idempotency_keys INCLUDING DEFAULTS'
        ' INCLUDING CONSTRAINTS INCLUDING INDEXES INCLUDING STORAGE INCLUDING COMPRESSION)'
        ' WITH (autovacuum_vacuum_insert_threshold = -1, autovacuum_freeze_min_age = 0)', part);
    EXECUTE format('ALTER TABLE idempotency_keys ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
        part, d, d + 1);
    RETURN 1;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION idempotency_keys_make_day IS
    'Makes the partition of one day, if it is missing, and returns how many it made. For the function '
    'below, and for keys that come from another cluster.';

-- +goose StatementBegin
CREATE FUNCTION idempotency_keys_make_partitions(ahead int) RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    today date := (now() AT TIME ZONE 'utc')::date;
    made  int := 0;
BEGIN
    IF ahead NOT BETWEEN 0 AND 60 THEN
        RAISE EXCEPTION 'idempotency_keys_make_partitions: ahead must be 0 to 60'
            USING ERRCODE = '22023';
    END IF;

    PERFORM pg_advisory_xact_lock(hashtextextended('idempotency_keys partitions', 0)); -- one at a time
    FOR i IN 0..ahead LOOP
        made := made + idempotency_keys_make_day(today + i);
    END LOOP;
    RETURN made;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION idempotency_keys_make_partitions IS
    'Makes the partitions of today and of the days ahead, and returns how many it made. It blocks '
    'no reader and no writer. API and relay call it every ten minutes, and so does a writer that '
    'meets a missing day.';

-- +goose StatementBegin
CREATE FUNCTION idempotency_keys_drop_partitions() RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    -- The first day that a look-up covers. One more day is kept for transactions that began before
    -- midnight. NULL, which drops nothing, until a program has called ExtendRetention.
    first   date := (SELECT ((now() AT TIME ZONE 'utc') - keep)::date FROM idempotency_retention);
    part    text;
    dropped int := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('idempotency_keys partitions', 0)); -- one at a time
    FOR part IN SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                WHERE i.inhparent = 'idempotency_keys'::regclass AND c.relname ~ '^idempotency_keys_[0-9]{8}$'
                  AND to_date(right(c.relname, 8), 'YYYYMMDD') < first - 1 LOOP
        -- Parent before partition, like every statement.
        LOCK TABLE ONLY idempotency_keys IN ACCESS EXCLUSIVE MODE;
        EXECUTE format('DROP TABLE %I', part);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION idempotency_keys_drop_partitions IS
    'Drops the partitions whose answers are no longer kept (idempotency_retention), and returns '
    'how many. Waits at most 50 ms for a lock and then fails with 55P03: call it again. The relay '
    'calls it every ten minutes.';
REVOKE ALL ON FUNCTION idempotency_keys_make_day, idempotency_keys_make_partitions,
    idempotency_keys_drop_partitions FROM PUBLIC;
SELECT idempotency_keys_make_partitions(7);

-- +goose Down
DROP FUNCTION idempotency_keys_make_partitions, idempotency_keys_make_day,
    idempotency_keys_drop_partitions;
DROP TABLE idempotency_retention;
DROP TABLE idempotency_keys;
