-- The example's own tables, beside those of idempotency and outbox.

CREATE TABLE stock (
    item        text   PRIMARY KEY,
    price_minor bigint NOT NULL CHECK (price_minor > 0),
    currency    text   NOT NULL,
    available   int    NOT NULL CHECK (available >= 0),
    reserved    int    NOT NULL DEFAULT 0 CHECK (reserved >= 0),
    sold        int    NOT NULL DEFAULT 0 CHECK (sold >= 0)
);

-- What changed the stock. The key makes a second move by one step impossible.
CREATE TABLE stock_moves (
    key       text NOT NULL PRIMARY KEY, -- <order>/reserve, <order>/confirm, <order>/release
    item      text NOT NULL REFERENCES stock,
    available int  NOT NULL, -- what it added to each, or took away
    reserved  int  NOT NULL,
    sold      int  NOT NULL
);

CREATE TABLE orders (
    id           uuid   PRIMARY KEY,
    item         text   NOT NULL REFERENCES stock,
    quantity     int    NOT NULL CHECK (quantity > 0),

    -- The whole intent of the charge. It never changes: a repeat under its key must be the same
    -- request.
    amount_minor bigint NOT NULL CHECK (amount_minor > 0),
    currency     text   NOT NULL,
    account      uuid,          -- who pays: an account
    card         text,          -- or a card
    pay_to       uuid   NOT NULL,
    CHECK (num_nonnulls(account, card) = 1),

    state            text    NOT NULL DEFAULT 'placed', -- saga.go has all of them
    version          bigint  NOT NULL DEFAULT 1,        -- of its last event
    reason           text    NOT NULL DEFAULT '',       -- why it did not get further
    cancel_requested boolean NOT NULL DEFAULT false,
    payment_id       uuid,
    refund_id        uuid,
    refund_attempt   int     NOT NULL DEFAULT 1, -- each has a key of its own

    -- The claim. A worker has the order until next_try_at, and writes under its token only.
    token          bigint      NOT NULL DEFAULT 0,
    tries          int         NOT NULL DEFAULT 0, -- claims in this state
    first_tried_at timestamptz,                    -- in this state
    next_try_at    timestamptz DEFAULT now(),      -- NULL: ended; infinity: an operator must look
    last_error     text        NOT NULL DEFAULT ''
);
CREATE INDEX orders_due ON orders (next_try_at) WHERE next_try_at IS NOT NULL;
