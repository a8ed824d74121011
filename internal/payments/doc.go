// Package payments is the domain: accounts, payments between them, and the ledger that proves them.
//
// # Promise
//
// A command takes effect once or not at all, together with its ledger entries, its event and its
// answer. A customer's balance is never below zero. The entries of a payment sum to zero, and a
// balance is the sum of its account's entries.
//
// # Reading order
//
// process.go is the heart of the service: one transaction, four verbs, each for a whole batch in a
// fixed number of statements. Read on in the order in which they run:
//
//	Claim    idempotency/claim.go    lock the keys, look up what is finished
//	Execute  execute.go              for each new request in turn, on accounts in memory:
//	           load.go               lock and read the accounts
//	           decide.go             the business rules, a function without a database
//	           save.go               write payments, ledger entries and balances
//	Append   outbox/append.go        write the events (made in events.go)
//	Store    idempotency/store.go    keep the responses
//
// idempotency.CommitOnce around them retries and commits; only then is anything sent. payments.go
// has the words. await.go and held.go are advanced: accounts that another session
// keeps locked.
package payments
