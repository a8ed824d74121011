// Package embedded runs Postgres and Kafka for the demo and for tests, on a machine with only Go
// installed.
//
// Promise: Postgres is real: either this machine's own (15 or newer) or the binaries of the same
// release that Maven Central keeps for the embedded-postgres projects. It works for root as well:
// Postgres refuses to run as root, so it then runs as an unprivileged user. It listens on
// 127.0.0.1 only. No server and no temporary directory outlives the process that started it,
// however that process ends: see guard.
//
// No promise: passwords are not checked, and the broker (franz-go's kfake, inside this process) has
// one node and no replication. It is not for production. Linux and macOS only.
package embedded
