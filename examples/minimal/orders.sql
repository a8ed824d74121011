-- The example's own table.
CREATE TABLE orders (id uuid PRIMARY KEY, item text NOT NULL);
