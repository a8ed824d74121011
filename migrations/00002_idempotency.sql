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
COMMENT ON TABLE idempotency_keys IS 'One row per key that was answered, complete with its answer, written in the transaction that did the work. A row is never updated; old days are dropped whole.';
COMMENT ON COLUMN idempotency_keys.key_hash IS 'First 128 bits of SHA-256(tenant_id, client_id, key), by which a key is found: substr(sha256(uuid_send(tenant_id) || uuid_send(client_id) || convert_to(key, ''UTF8'')), 1, 16). An index on the three themselves would be more than twice as large, and keys are random: it has to stay in memory.';
COMMENT ON COLUMN idempotency_keys.day IS 'UTC day of created_at by the database clock. The primary key is a backstop within one day only: what makes a key take effect once is the advisory lock that the claim holds.';
COMMENT ON COLUMN idempotency_keys.fingerprint IS 'SHA-256 of the request as the program understood it, by the rules of fingerprint_version.';
COMMENT ON COLUMN idempotency_keys.request_id IS 'X-Request-Id of the attempt that did the work.';
COMMENT ON COLUMN idempotency_keys.location IS 'Location header of the answer; empty: it had none.';
COMMENT ON COLUMN idempotency_keys.body IS 'The answer byte for byte. bytea, because jsonb would reorder members and lose white space.';

-- Every day's partition is made with LIKE, so what is set here holds for all of them.
-- +goose StatementBegin
DO $$ BEGIN
    ALTER TABLE idempotency_keys ALTER COLUMN body SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
    NULL; -- a server built without lz4 compresses with pglz
END $$;
-- +goose StatementEnd

CREATE TABLE idempotency_keys_default PARTITION OF idempotency_keys DEFAULT;
COMMENT ON TABLE idempotency_keys_default IS 'Catches what has no partition, so that a missing day never refuses a payment. It should be empty: a row in it is an alarm.';

CREATE TABLE idempotency_retention (
    only_row boolean  PRIMARY KEY DEFAULT true CHECK (only_row),
    keep     interval NOT NULL CHECK (keep BETWEEN '24 hours' AND '720 hours')
);
COMMENT ON TABLE idempotency_retention IS 'The longest time for which any program has promised to keep answers. Look-ups go back so far and no younger partition is dropped, whatever a program is configured to. Lower it by hand, when the old time has passed since the last program promised it.';

-- +goose StatementBegin
CREATE FUNCTION idempotency_keys_make_partitions(ahead int, most_moved int DEFAULT 10000) RETURNS TABLE (made int, default_rows bigint)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    today date := (now() AT TIME ZONE 'utc')::date;
    d     date;
    part  text;
BEGIN
    IF ahead NOT BETWEEN 0 AND 60 OR most_moved < 0 THEN
        RAISE EXCEPTION 'idempotency_keys_make_partitions: ahead must be 0 to 60, most_moved not negative' USING ERRCODE = '22023';
    END IF;
    made := 0;
    PERFORM pg_advisory_xact_lock(hashtextextended('idempotency_keys partitions', 0)); -- one caller after the other
    -- The days to come, and those that were missing when rows came.
    FOREACH d IN ARRAY ARRAY(SELECT today + i FROM generate_series(0, ahead) i UNION SELECT DISTINCT day FROM idempotency_keys_default) LOOP
        part := 'idempotency_keys_' || to_char(d, 'YYYYMMDD');
        CONTINUE WHEN EXISTS (SELECT FROM pg_inherits WHERE inhparent = 'idempotency_keys'::regclass AND inhrelid = to_regclass(part));
        -- Moving rows holds up everybody for as long as it takes: many of them are for an operator, at a quiet hour.
        CONTINUE WHEN (SELECT count(*) FROM (SELECT FROM idempotency_keys_default WHERE day = d LIMIT most_moved + 1) few) > most_moved;
        -- LIKE and ATTACH, not PARTITION OF: that locks the parent against all readers.
        EXECUTE format('CREATE TABLE %I (LIKE idempotency_keys INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES INCLUDING STORAGE INCLUDING COMPRESSION)', part);
        -- ATTACH would take this lock, and would refuse while the default partition has rows of the day: they move first.
        LOCK TABLE idempotency_keys_default IN ACCESS EXCLUSIVE MODE;
        EXECUTE format('WITH moved AS (DELETE FROM idempotency_keys_default WHERE day = %L RETURNING *) INSERT INTO %I SELECT * FROM moved', d, part);
        EXECUTE format('ALTER TABLE idempotency_keys ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', part, d, d + 1);
        made := made + 1;
    END LOOP;
    SELECT count(*) INTO default_rows FROM (SELECT FROM idempotency_keys_default LIMIT 1000) few;
    RETURN NEXT;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION idempotency_keys_make_partitions IS 'Makes the partitions of today, of the days ahead and of rows in the default partition. Returns how many it made, and how many rows (up to 1,000) are left in the default partition, which should be none. Days with more than most_moved rows there are left alone. Waits at most 50 ms for a lock and then fails with 55P03: call it again. Call it daily from the relay, psql or pg_cron.';

-- A function of its own: in the transaction of an ATTACH, which holds the default partition, DROP would wait for the parent while
-- look-ups that hold the parent wait for the default partition, every time.
-- +goose StatementBegin
CREATE FUNCTION idempotency_keys_drop_partitions(keep_days int) RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    today   date := (now() AT TIME ZONE 'utc')::date;
    part    text;
    dropped int := 0;
BEGIN
    IF keep_days NOT BETWEEN 1 AND 400 THEN
        RAISE EXCEPTION 'idempotency_keys_drop_partitions: keep_days must be 1 to 400' USING ERRCODE = '22023';
    END IF;
    -- What was promised is kept, whatever the caller believes.
    keep_days := greatest(keep_days, (SELECT ceil(extract(epoch FROM keep) / 86400)::int FROM idempotency_retention));
    PERFORM pg_advisory_xact_lock(hashtextextended('idempotency_keys partitions', 0)); -- one caller after the other
    -- The look-up covers today and keep_days before it; one more day stays for transactions that began before midnight.
    FOR part IN SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                WHERE i.inhparent = 'idempotency_keys'::regclass AND c.relname ~ '^idempotency_keys_[0-9]{8}$'
                  AND to_date(right(c.relname, 8), 'YYYYMMDD') < today - keep_days - 1 LOOP
        LOCK TABLE ONLY idempotency_keys IN ACCESS EXCLUSIVE MODE; -- parent before partition, as everybody locks them
        EXECUTE format('DROP TABLE %I', part);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION idempotency_keys_drop_partitions IS 'Drops the partitions older than keep_days whose answers are no longer promised (idempotency_retention), and returns how many. Waits at most 50 ms for a lock and then fails with 55P03: call it again. Call it daily.';
REVOKE ALL ON FUNCTION idempotency_keys_make_partitions, idempotency_keys_drop_partitions FROM PUBLIC;
SELECT idempotency_keys_make_partitions(7);

-- +goose Down
DROP FUNCTION idempotency_keys_make_partitions, idempotency_keys_drop_partitions;
DROP TABLE idempotency_retention;
DROP TABLE idempotency_keys;
