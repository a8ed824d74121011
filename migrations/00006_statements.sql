-- +goose Up
CREATE TABLE statements (
    account_id    uuid   NOT NULL,
    day           date   NOT NULL,
    currency      text   NOT NULL,
    payment_count bigint NOT NULL CHECK (payment_count > 0),
    debits_minor  bigint NOT NULL CHECK (debits_minor >= 0),
    credits_minor bigint NOT NULL CHECK (credits_minor >= 0),
    PRIMARY KEY (account_id, day)
);
COMMENT ON TABLE statements IS
    'The sample consumer''s own table: what moved on an account on a UTC day, built from payment '
    'events alone. Counting is not idempotent, so correct counts show that every event took '
    'effect once.';

-- +goose Down
DROP TABLE statements;
