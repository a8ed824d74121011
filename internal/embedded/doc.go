// Package embedded runs Postgres and Kafka on a machine where nothing but Go is installed: for the demo and for tests.
//
// Promise: the Postgres is a real one, either this machine's own (15 or newer) or the binaries of the same release that
// Maven Central keeps for the embedded-postgres projects. It works for root as well: Postgres refuses to run as root, so
// it then runs as the user nobody. It listens on 127.0.0.1 only. No server and no temporary directory outlives the
// process that started it, whatever way that process ends: see guard.
//
// No promise: nobody's password is checked, and the broker (franz-go's kfake, inside this process) has one node and no
// replication. It is not for production. Linux and macOS only.
package embedded
