// Package payments is the domain: accounts, payments between them and the ledger that proves them.
//
// Read it in this order: payments.go has the words, decide.go the rules (pure, without a database), execute.go loads,
// decides and saves a whole batch in a fixed number of statements, and process.go is the heart of the service: one
// transaction claims the idempotency keys, executes, appends the events and stores the responses.
//
// Promise: a command takes effect once or not at all, with its ledger entries, its event and its answer; a customer's
// balance is never below zero; entries sum to zero per payment, and a balance is the sum of its account's entries.
package payments
