-- Tenants that leave for another cluster. Programs of the version before do not look at it: move a
-- tenant when all programs are of version 14.
-- oldest program: 8
-- +goose Up
CREATE TABLE tenant_moves (
    tenant_id uuid        PRIMARY KEY REFERENCES tenants,
    state     text        NOT NULL DEFAULT 'leaving' CHECK (state IN ('leaving', 'left')),
    target    text        NOT NULL,
    attempt   uuid        NOT NULL DEFAULT gen_random_uuid(),
    since     timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE tenant_moves IS
    'Tenants whose writes this cluster refuses. Every writing transaction reads it, so it has a row for '
    'each tenant that leaves or has left and no other; see internal/tenantmove.';
COMMENT ON COLUMN tenant_moves.state IS
    'leaving: its rows are being copied, and it may still stay. left: the target''s copy counts, for '
    'good. That is committed before the copy, so the tenant is never active in two clusters.';
COMMENT ON COLUMN tenant_moves.target IS 'The database it goes to: its system identifier and its name.';
COMMENT ON COLUMN tenant_moves.attempt IS
    'Of the last command. One that was frozen while another began cannot finish with an old copy.';
GRANT SELECT ON tenant_moves TO api_write, worker;

-- +goose Down
-- The tenants that left would be served here again, in two clusters.
-- +goose StatementBegin
DO $$
BEGIN
    IF EXISTS (SELECT FROM tenant_moves) THEN
        RAISE EXCEPTION 'tenants are moving, or have moved: version 13 would serve them here again'
            USING ERRCODE = '55000';
    END IF;
END $$;
-- +goose StatementEnd
DROP TABLE tenant_moves;
