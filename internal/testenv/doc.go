// Package testenv gives a test a database and a broker of its own. For tests only.
//
// Promise: every database is fresh, migrated and real, so commits, locks and NOTIFY are real, and
// tests run in parallel. Every topic prefix is unique. Nothing is skipped silently: a server that
// cannot be reached or started fails the test.
//
// Which servers, in this order:
//
//   - TEST_DATABASE_URL (a superuser's; max_prepared_transactions above 0) and TEST_KAFKA_BROKERS
//     name running ones: `make test` starts one of each for all packages, see test/servers;
//   - TEST_SERVERS=docker: containers of TEST_POSTGRES_IMAGE (postgres:17) and TEST_KAFKA_IMAGE
//     (apache/kafka:4.3.1);
//   - otherwise package embedded; EMBEDDED_POSTGRES=download ignores the binaries of this machine.
//
// Servers start on first use, once in a test process, and the log names them. A test process
// cannot hook its own end, so others clean up: embedded's guard stops its Postgres, the broker
// lives in this process, and Testcontainers' reaper removes containers. If the reaper is
// disabled, containers are refused here; `go run ./test/servers -docker` provides them and
// removes its own. Databases are dropped when their test ends. On servers that outlive the
// process, killed tests leave theirs (oncepay_test_…), and each edit of the schema leaves its
// template.
package testenv
