-- +goose Up
CREATE TABLE outbox_events (
    id                bigint      GENERATED ALWAYS AS IDENTITY (CACHE 1),
    xid               xid8        NOT NULL DEFAULT pg_current_xact_id(),
    event_id          uuid        NOT NULL DEFAULT gen_random_uuid(),
    tenant_id         uuid,
    aggregate_type    text        COLLATE "C" NOT NULL,
    aggregate_id      text        COLLATE "C" NOT NULL,
    aggregate_version bigint,
    event_type        text        NOT NULL,
    payload           bytea       NOT NULL,
    headers           jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(headers) = 'object'),
    created_at        timestamptz NOT NULL DEFAULT now()
) PARTITION BY RANGE (created_at);
-- There is no primary key: one would need created_at as well. Rows are never updated or deleted, so
-- this costs nothing; without it a publication FOR ALL TABLES forbids even trying.
ALTER TABLE outbox_events REPLICA IDENTITY FULL;
CREATE INDEX outbox_events_id ON outbox_events (id);
CREATE INDEX outbox_events_xid ON outbox_events (xid, id);
COMMENT ON TABLE outbox_events IS
    'Events that are to reach Kafka, written in the transaction that they tell of. Append-only: '
    'never updated, never deleted from; days that were sent are dropped whole.';
COMMENT ON COLUMN outbox_events.id IS
    'Order within an aggregate: drawn while the transaction holds the aggregate''s row lock, in a '
    'later statement. CACHE 1 is part of that promise. Gaps are normal.';
COMMENT ON COLUMN outbox_events.xid IS
    'The transaction that wrote it. Never name it in an INSERT: the relay finds late commits by '
    'it.';
COMMENT ON COLUMN outbox_events.event_id IS 'What consumers deduplicate by.';
COMMENT ON COLUMN outbox_events.tenant_id IS
    'Whose event it is; NULL in a service without tenants. Not indexed: only a move of a tenant asks, '
    'for what lies behind the cursor. Not sent: a header says it to consumers.';
COMMENT ON COLUMN outbox_events.aggregate_type IS 'Topic name without its prefix.';
COMMENT ON COLUMN outbox_events.aggregate_id IS
    'Record key: events of one aggregate keep their order.';
COMMENT ON COLUMN outbox_events.aggregate_version IS
    '1, 2, 3 … without a gap for each aggregate, for consumers that need it. The relay does not '
    'look at it.';
COMMENT ON COLUMN outbox_events.payload IS 'Record value; the relay passes it on byte for byte.';
COMMENT ON COLUMN outbox_events.headers IS
    'Further record headers, text to text, such as traceparent.';

CREATE TABLE outbox_cursors (
    relay             text        COLLATE "C" PRIMARY KEY,
    batches           bigint      NOT NULL DEFAULT 0,
    last_id           bigint      NOT NULL DEFAULT 0,
    seen              pg_snapshot NOT NULL,
    chunk_after       bigint,
    chunk_seen        pg_snapshot,
    moved_at          timestamptz NOT NULL DEFAULT now(),
    system_identifier bigint      NOT NULL,
    database_oid      oid         NOT NULL,
    epoch             uuid        NOT NULL DEFAULT gen_random_uuid(),
    cursor_id         uuid        NOT NULL DEFAULT gen_random_uuid(),
    holder            text        NOT NULL DEFAULT '',
    lease_until       timestamptz NOT NULL DEFAULT '-infinity',
    fencing_token     bigint      NOT NULL DEFAULT 0,
    CHECK ((chunk_after IS NULL) = (chunk_seen IS NULL))
) WITH (fillfactor = 10);
COMMENT ON TABLE outbox_cursors IS
    'How far each relay has read, and which process is its leader. One row per relay name.';
COMMENT ON COLUMN outbox_cursors.batches IS
    'How many batches lie behind the cursor. The progress record in Kafka counts them, too: one '
    'that is ahead of this row by events that the outbox has not shows that the database went '
    'back.';
COMMENT ON COLUMN outbox_cursors.last_id IS 'Highest id read. Never goes down.';
COMMENT ON COLUMN outbox_cursors.seen IS
    'The snapshot last_id was read in. Rows with a lower id that it could not see are the '
    'stragglers of the next read.';
COMMENT ON COLUMN outbox_cursors.chunk_after IS
    'Set while more stragglers than one batch holds go out in chunks: the id the last chunk ended '
    'at.';
COMMENT ON COLUMN outbox_cursors.chunk_seen IS
    'The snapshot that the chunked stragglers were counted in.';
COMMENT ON COLUMN outbox_cursors.system_identifier IS
    'The database cluster that last_id and seen belong to. Another cluster or database means a '
    'restore, an upgrade or a move: the relay refuses to start, until relay adopt has checked it.';
COMMENT ON COLUMN outbox_cursors.epoch IS
    'Progress records of another epoch count no longer. An operator sets a new one to say: after '
    'a restore, go on from this row.';
COMMENT ON COLUMN outbox_cursors.cursor_id IS
    'Names this cursor in Kafka, for good: in the key of its progress and in the transactional id. '
    'So clusters that share a Kafka and these names neither overwrite nor fence each other, and '
    'after an upgrade, a move or a restore the old leader is still fenced.';
COMMENT ON COLUMN outbox_cursors.lease_until IS
    'By the database''s clock. The leader renews it every third of the lease; a standby takes it '
    'when it has run out. -infinity: given back.';
COMMENT ON COLUMN outbox_cursors.fencing_token IS
    'Goes up with every change of leader and stands in the WHERE of every move of the cursor, so '
    'a leader that lost its lease can move nothing.';

CREATE TABLE outbox_dead_letters (
    relay             text        COLLATE "C" NOT NULL,
    id                bigint      NOT NULL,
    xid               xid8        NOT NULL,
    event_id          uuid        NOT NULL,
    tenant_id         uuid,
    aggregate_type    text        COLLATE "C" NOT NULL,
    aggregate_id      text        COLLATE "C" NOT NULL,
    aggregate_version bigint,
    event_type        text        NOT NULL,
    payload           bytea       NOT NULL,
    headers           jsonb       NOT NULL,
    created_at        timestamptz NOT NULL,
    refusal           text,
    went_ahead        uuid[]      NOT NULL DEFAULT '{}',
    state             text        NOT NULL DEFAULT 'parked' CHECK (state IN ('parked', 'retry', 'sent', 'skipped')),
    parked_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    resolved_at       timestamptz,
    note              text        NOT NULL DEFAULT '',
    PRIMARY KEY (relay, id),
    CHECK (state <> 'skipped' OR note <> '')
);
CREATE INDEX outbox_dead_letters_unsent ON outbox_dead_letters (relay, aggregate_type, aggregate_id) WHERE state IN ('parked', 'retry');
CREATE INDEX outbox_dead_letters_undecided ON outbox_dead_letters (relay, aggregate_type, aggregate_id) WHERE state = 'parked' AND refusal IS NOT NULL;
COMMENT ON TABLE outbox_dead_letters IS
    'Events that the broker refused, and the events of the same aggregates behind them, which '
    'wait so that their order holds. Copies: the outbox drops its days.';
COMMENT ON COLUMN outbox_dead_letters.refusal IS
    'Why the broker refused it. NULL: it was not refused, it waits behind one that was.';
COMMENT ON COLUMN outbox_dead_letters.went_ahead IS
    'Events of the same aggregate, behind this one, that were on the topic already when it was '
    'refused.';
COMMENT ON COLUMN outbox_dead_letters.state IS
    'parked: waits for an operator, or behind one that does. retry: an operator wants it sent '
    'again. sent: it was. skipped: it never will be; the note says why.';

-- There is no default partition, and no lock that readers or writers conflict with: see
-- idempotency_keys_make_partitions. A writer that meets a missing day gets 23514, makes the day
-- with this function and runs its transaction again.
-- +goose StatementBegin
CREATE FUNCTION outbox_events_make_partitions(ahead int) RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET timezone = 'UTC' AS $$
DECLARE
    today date := now()::date; -- the function's time zone is UTC
    d     date;
    part  text;
    made  int := 0;
BEGIN
    IF ahead NOT BETWEEN 0 AND 60 THEN
        RAISE EXCEPTION 'outbox_events_make_partitions: ahead must be 0 to 60' USING ERRCODE = '22023';
    END IF;

    PERFORM pg_advisory_xact_lock(hashtextextended('outbox_events partitions', 0)); -- one caller after the other
    FOR i IN 0..ahead LOOP
        d := today + i;
        part := 'outbox_events_' || to_char(d, 'YYYYMMDD');
        CONTINUE WHEN EXISTS (SELECT FROM pg_inherits WHERE inhparent = 'outbox_events'::regclass AND inhrelid = to_regclass(part));

        -- Without the identity: a partition must not have one of its own. The options: see
        -- idempotency_keys_make_partitions.
        EXECUTE format('CREATE TABLE %I (LIKE outbox_events INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES INCLUDING STORAGE INCLUDING COMPRESSION)'
            ' WITH (autovacuum_vacuum_insert_threshold = -1, autovacuum_freeze_min_age = 0)', part);
        EXECUTE format('ALTER TABLE %I REPLICA IDENTITY FULL', part);
        EXECUTE format('ALTER TABLE outbox_events ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', part, d, d + 1);
        made := made + 1;
    END LOOP;
    RETURN made;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION outbox_events_make_partitions IS
    'Makes the partitions of today and of the days ahead, and returns how many it made. It holds '
    'up no reader and no writer. API and relay call it every ten minutes, and so does a writer '
    'that meets a missing day.';

-- +goose StatementBegin
CREATE FUNCTION outbox_events_drop_partitions(keep interval) RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '50ms' SET timezone = 'UTC' AS $$
DECLARE
    part    text;
    unsent  text;
    waits   boolean;
    dropped int := 0;
BEGIN
    IF keep < interval '1 hour' THEN
        RAISE EXCEPTION 'outbox_events_drop_partitions: keep must be an hour or more' USING ERRCODE = '22023';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('outbox_events partitions', 0)); -- one caller after the other
    FOR part IN SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                WHERE i.inhparent = 'outbox_events'::regclass AND c.relname ~ '^outbox_events_[0-9]{8}$'
                  AND to_date(right(c.relname, 8), 'YYYYMMDD') + 1 < now() - keep ORDER BY 1 LOOP
        -- Sent: every relay's cursor is behind all rows, and no row is a straggler that it has
        -- still to send. Both conditions read the end of an index. With no cursor at all nothing
        -- was ever sent.
        unsent := format('SELECT NOT EXISTS (SELECT FROM outbox_cursors) OR EXISTS (
            SELECT FROM outbox_cursors c WHERE c.chunk_after IS NOT NULL
                OR EXISTS (SELECT FROM %1$I o WHERE o.id > c.last_id)
                OR EXISTS (SELECT FROM %1$I o WHERE o.xid >= pg_snapshot_xmin(c.seen) AND NOT pg_visible_in_snapshot(o.xid, c.seen)))', part);
        EXECUTE unsent INTO waits;
        EXIT WHEN waits;
        -- Then the lock, the check again, the drop: what the first check saw may have changed
        -- before the lock was there.
        LOCK TABLE ONLY outbox_events IN ACCESS EXCLUSIVE MODE; -- parent before partition, as everybody locks them
        EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', part);
        EXECUTE unsent INTO waits;
        EXIT WHEN waits;
        EXECUTE format('DROP TABLE %I', part);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION outbox_events_drop_partitions IS
    'Drops the partitions older than keep that every relay has sent, and returns how many. Waits '
    'at most 50 ms for a lock and then fails with 55P03: call it again. The relay calls it every '
    'ten minutes.';
REVOKE ALL ON FUNCTION outbox_events_make_partitions, outbox_events_drop_partitions FROM PUBLIC;
SELECT outbox_events_make_partitions(7);

-- +goose Down
DROP FUNCTION outbox_events_make_partitions, outbox_events_drop_partitions;
DROP TABLE outbox_dead_letters;
DROP TABLE outbox_cursors;
DROP TABLE outbox_events;
