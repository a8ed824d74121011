-- +goose Up
CREATE TABLE inbox_events (
    consumer     text        COLLATE "C" NOT NULL,
    event_id     uuid        NOT NULL,
    event_day    date        NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, event_id, event_day)
) PARTITION BY RANGE (event_day);
COMMENT ON TABLE inbox_events IS 'Events whose effect has happened, written in the transaction of the effect. What is here is never done again. There is no default partition: an event whose day has no partition is not taken, so none is taken whose day was dropped.';
COMMENT ON COLUMN inbox_events.event_id IS 'The event''s own id. Never topic, partition and offset: a broker that is reset hands those out again.';
COMMENT ON COLUMN inbox_events.event_day IS 'UTC day of the event''s own ce_time, which is the same on every delivery. So the primary key finds a repeat on any day.';

CREATE TABLE inbox_horizon (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    day      date    NOT NULL
);
INSERT INTO inbox_horizon (day) VALUES ('1970-01-01');
COMMENT ON TABLE inbox_horizon IS 'Days before this one may have been dropped from inbox_events. It only goes up, and no partition is made before it, whatever a clock or a configuration says.';

CREATE TABLE inbox_consumers (
    consumer  text COLLATE "C" PRIMARY KEY,
    keep_days int
);
COMMENT ON TABLE inbox_consumers IS 'For how many days each consumer needs inbox_events. NULL: for all time, since its topics may deliver anything again. Delete the row of a consumer that is gone.';

CREATE TABLE inbox_dead_letters (
    id          bigint      GENERATED ALWAYS AS IDENTITY (CACHE 1),
    consumer    text        COLLATE "C" NOT NULL,
    event_id    uuid        NOT NULL,
    event_day   date,
    event_type  text        NOT NULL,
    sequence    bigint      NOT NULL,
    topic       text        COLLATE "C" NOT NULL,
    partition   int         NOT NULL,
    "offset"    bigint      NOT NULL,
    key         bytea       NOT NULL,
    long_key    bytea,
    headers     bytea[]     NOT NULL,
    payload     bytea       NOT NULL,
    reason      text,
    tries       int         NOT NULL DEFAULT 0,
    state       text        NOT NULL DEFAULT 'parked' CHECK (state IN ('parked', 'retry', 'applied', 'skipped')),
    parked_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    resolved_at timestamptz,
    note        text        NOT NULL DEFAULT '',
    PRIMARY KEY (consumer, id),
    UNIQUE (consumer, event_id),
    CHECK (state <> 'skipped' OR note <> '')
);
CREATE INDEX inbox_dead_letters_open ON inbox_dead_letters (consumer, topic, key, id) WHERE state IN ('parked', 'retry');
CREATE INDEX inbox_dead_letters_day ON inbox_dead_letters (event_day) WHERE state IN ('parked', 'retry');
CREATE INDEX inbox_dead_letters_failed ON inbox_dead_letters (consumer, id) WHERE reason IS NOT NULL;
CREATE INDEX inbox_dead_letters_undecided ON inbox_dead_letters (consumer, topic, key) WHERE state = 'parked' AND reason IS NOT NULL;
COMMENT ON TABLE inbox_dead_letters IS 'Events that a consumer cannot process, and the events of the same aggregates (topic and key) behind them, which wait so that their order holds. Written before their offsets are committed.';
COMMENT ON COLUMN inbox_dead_letters.id IS 'Order within an aggregate.';
COMMENT ON COLUMN inbox_dead_letters.event_id IS 'ce_id. Of a record that is no CloudEvent: a UUIDv8, the hash of its topic, partition, offset and contents.';
COMMENT ON COLUMN inbox_dead_letters.event_day IS 'Its day in inbox_events. NULL: it has none that the inbox could know it by, so this row alone says whether it took effect.';
COMMENT ON COLUMN inbox_dead_letters.sequence IS 'ce_sequence; 0: not given.';
COMMENT ON COLUMN inbox_dead_letters.key IS 'The record''s key. Of one that is longer than 1,024 bytes: its SHA-256, since an index takes no more than 2,704 bytes.';
COMMENT ON COLUMN inbox_dead_letters.long_key IS 'The record''s key if it is longer than 1,024 bytes.';
COMMENT ON COLUMN inbox_dead_letters.headers IS 'Name, value, name, value …, as received.';
COMMENT ON COLUMN inbox_dead_letters.reason IS 'Why it cannot be processed. NULL: it was not tried, it waits behind one that cannot.';
COMMENT ON COLUMN inbox_dead_letters.state IS 'parked: waits for an operator, or behind one that does. retry: an operator wants it processed. applied: its effect has happened. skipped: it never will; the note says why.';

CREATE TABLE inbox_sequences (
    consumer text   COLLATE "C" NOT NULL,
    topic    text   COLLATE "C" NOT NULL,
    key      bytea  NOT NULL,
    last     bigint NOT NULL,
    day      date   NOT NULL,
    PRIMARY KEY (consumer, topic, key)
);
CREATE INDEX inbox_sequences_day ON inbox_sequences (consumer, day);
COMMENT ON TABLE inbox_sequences IS 'The highest ce_sequence that each aggregate (topic and key) has reached, to notice missing and repeated ones. Forgotten when the aggregate is older than the horizon.';
COMMENT ON COLUMN inbox_sequences.key IS 'As in inbox_dead_letters.';
COMMENT ON COLUMN inbox_sequences.day IS 'UTC day of its last event.';

-- +goose StatementBegin
CREATE FUNCTION inbox_events_make_partitions(days date[]) RETURNS date[]
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '1s' SET timezone = 'UTC' AS $$
DECLARE
    latest  date := now()::date + 1; -- clocks differ, and an event of the day after tomorrow is a mistake
    refused date[] := '{}';
    d       date;
    part    text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('inbox_events partitions', 0)); -- one caller after the other
    FOREACH d IN ARRAY ARRAY(SELECT DISTINCT t.day FROM unnest(days) t(day) ORDER BY 1) LOOP
        -- A later statement than the lock: it sees what the last drop committed.
        IF d < (SELECT day FROM inbox_horizon) OR d > latest THEN
            refused := refused || d;
            CONTINUE;
        END IF;
        part := 'inbox_events_' || to_char(d, 'YYYYMMDD');
        CONTINUE WHEN to_regclass(part) IS NOT NULL;
        -- LIKE and ATTACH, not PARTITION OF: that locks the parent against all readers.
        EXECUTE format('CREATE TABLE %I (LIKE inbox_events INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES INCLUDING STORAGE)'
            -- Inserted, read and dropped: vacuum finds nothing to do here but freezing. LIKE copies no options.
            ' WITH (autovacuum_vacuum_insert_threshold = -1, autovacuum_freeze_min_age = 0)', part);
        EXECUTE format('ALTER TABLE inbox_events ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', part, d, d + 1);
    END LOOP;
    RETURN refused;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION inbox_events_make_partitions IS 'Makes the partitions of these days where they are missing, and returns the days that it refuses: those before the horizon, and those after tomorrow. No consumer waits for it.';

-- +goose StatementBegin
CREATE FUNCTION inbox_events_drop_partitions(consumer text, keep_days int) RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '50ms' SET timezone = 'UTC' AS $$
DECLARE
    cut     date;
    part    text;
    dropped int := 0;
BEGIN
    IF keep_days < 1 THEN
        RAISE EXCEPTION 'inbox_events_drop_partitions: keep_days must be 1 or more' USING ERRCODE = '22023';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('inbox_events partitions', 0)); -- one caller after the other
    INSERT INTO inbox_consumers AS c VALUES (consumer, keep_days)
    ON CONFLICT ON CONSTRAINT inbox_consumers_pkey DO UPDATE SET keep_days = excluded.keep_days
    WHERE c.keep_days IS DISTINCT FROM excluded.keep_days;
    IF EXISTS (SELECT FROM inbox_consumers c WHERE c.keep_days IS NULL) THEN
        RETURN 0;
    END IF;
    -- Nothing is parked from here on, so the days of all undecided letters are known. They stay: whether such an event has
    -- taken effect before is told by its day.
    LOCK TABLE inbox_dead_letters IN SHARE MODE;
    SELECT least(now()::date - max(c.keep_days),
                 (SELECT l.event_day FROM inbox_dead_letters l WHERE l.state IN ('parked', 'retry')
                  AND l.event_day >= (SELECT h.day FROM inbox_horizon h) ORDER BY l.event_day LIMIT 1))
    INTO cut FROM inbox_consumers c;
    UPDATE inbox_horizon SET day = cut WHERE day < cut;
    FOR part IN SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                WHERE i.inhparent = 'inbox_events'::regclass AND c.relname ~ '^inbox_events_[0-9]{8}$'
                  AND to_date(right(c.relname, 8), 'YYYYMMDD') < (SELECT day FROM inbox_horizon) LOOP
        -- An insert that is under way holds the parent: it commits first, or finds no partition and then none made.
        LOCK TABLE ONLY inbox_events IN ACCESS EXCLUSIVE MODE; -- parent before partition, as everybody locks them
        EXECUTE format('DROP TABLE %I', part);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION inbox_events_drop_partitions IS 'Notes for how many days a consumer needs the inbox (NULL: for all time), moves the horizon to what the neediest leaves, never past the day of an undecided dead letter, and drops what is before it. Returns how many partitions. Waits at most 50 ms for a lock and then fails with 55P03: call it again.';
REVOKE ALL ON FUNCTION inbox_events_make_partitions, inbox_events_drop_partitions FROM PUBLIC;

-- +goose Down
DROP FUNCTION inbox_events_make_partitions, inbox_events_drop_partitions;
DROP TABLE inbox_sequences;
DROP TABLE inbox_dead_letters;
DROP TABLE inbox_consumers;
DROP TABLE inbox_horizon;
DROP TABLE inbox_events;
