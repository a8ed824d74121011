-- Runs once, when docker-compose.yml's Postgres makes its cluster. The programs log in as the roles themselves, with passwords for
-- this one machine; migrations/00007_roles.sql finds the roles there and grants them what they may do.
-- Elsewhere: roles without login from the migration, and a login that is a member of one.
CREATE ROLE api_write LOGIN PASSWORD 'api_write';
CREATE ROLE api_read LOGIN PASSWORD 'api_read';
CREATE ROLE relay LOGIN PASSWORD 'relay';
CREATE ROLE consumer LOGIN PASSWORD 'consumer';
CREATE ROLE worker LOGIN PASSWORD 'worker';
