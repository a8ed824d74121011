-- +goose Up
CREATE TABLE tenants (
    id         uuid PRIMARY KEY,
    name       text COLLATE "C" NOT NULL UNIQUE CHECK (char_length(name) BETWEEN 1 AND 100),
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE tenants IS
    'Owners of accounts and money. Nothing ever crosses from one tenant to another.';

CREATE TABLE clients (
    id         uuid PRIMARY KEY,
    tenant_id  uuid NOT NULL REFERENCES tenants,
    name       text COLLATE "C" NOT NULL CHECK (char_length(name) BETWEEN 1 AND 100),
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant_id, name)
);
COMMENT ON TABLE clients IS
    'A program that calls the API for a tenant. It scopes idempotency keys and outlives its '
    'credentials, so that a repeat under a rotated credential is still a repeat.';

CREATE TABLE credentials (
    id          text COLLATE "C" PRIMARY KEY CHECK (id ~ '^[0-9A-Za-z]{16}$'),
    client_id   uuid NOT NULL REFERENCES clients,
    secret_hash bytea NOT NULL CHECK (octet_length(secret_hash) = 32),
    scopes      text[] NOT NULL DEFAULT '{}',
    created_at  timestamptz NOT NULL DEFAULT now(),
    revoked_at  timestamptz
);
CREATE INDEX credentials_client ON credentials (client_id);
COMMENT ON TABLE credentials IS
    'API credentials. The secret is shown once, when it is made, and never stored.';
COMMENT ON COLUMN credentials.id IS
    'The public part of the credential: it is looked up by this, and logs may show it.';
COMMENT ON COLUMN credentials.secret_hash IS
    'SHA-256 of the secret. The secret has 190 random bits, so a slow hash would add nothing.';
COMMENT ON COLUMN credentials.scopes IS
    'What it may do besides moving its own customers'' money: accounts:fund allows a system '
    'account as the source of a payment.';
COMMENT ON COLUMN credentials.revoked_at IS 'It is refused from then on. NULL: it is valid.';

-- +goose Down
DROP TABLE credentials;
DROP TABLE clients;
DROP TABLE tenants;
