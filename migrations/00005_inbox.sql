-- +goose Up
CREATE TABLE inbox_events (
    consumer     text        COLLATE "C" NOT NULL,
    event_id     uuid        NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, event_id)
);
COMMENT ON TABLE inbox_events IS 'Events whose effect has happened, written in the transaction of the effect. What stands here is never done again.';
COMMENT ON COLUMN inbox_events.event_id IS 'The event''s own id. Never topic, partition and offset: a broker that is reset hands those out again.';

-- +goose Down
DROP TABLE inbox_events;
