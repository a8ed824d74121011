// Package idempotency makes a request under an Idempotency-Key take effect once.
//
// # Promise
//
// One Postgres transaction claims the key, does the work and stores the response:
//
//	answers, err := idempotency.Claim(ctx, tx, requests, retention) // lock, then look up
//	… do the work of those that are New, fill in their Response …
//	err = idempotency.Store(ctx, tx, requests, answers)
//	COMMIT — no answer may be sent before it
//
// Whatever crashes, repeats or races, the work of a key is done at most once, every repeat gets the
// first answer byte for byte, and no key is ever stuck: a claim is a lock of the transaction, not a
// row with a state, so it ends with the transaction or its connection. The protocol is
// draft-ietf-httpapi-idempotency-key-header-07, with Stripe's habits where the draft is silent.
//
// Not promised: anything outside the database. A card processor that is called between Claim and
// Store is called again when the transaction rolls back.
//
// # Reading order
//
// claim.go and store.go are the pattern, run.go is both around one request, commit_once.go retries
// and commits. outcome.go (a COMMIT whose reply was lost), commit.go (a standby that is away) and
// begin.go (a dead connection) are advanced.
//
// # Why it is right
//
// Claim takes an advisory lock on (tenant, client, key) without waiting, and looks the key up in a
// LATER statement. Under READ COMMITTED each statement has its own snapshot, so a session that got
// the lock sees what the previous holder committed.
//
//   - Lock and look-up in one statement: the snapshot is older than the lock. Measured: 1,159 of
//     10,002 look-ups were stale, each of them a second payment. In two statements: 0 of 50,001.
//   - REPEATABLE READ or SERIALIZABLE: the snapshot is the transaction's, which is older still (527
//     of 10,001). Claim refuses to work there.
//   - In a savepoint: its rollback releases the lock while the transaction goes on. Claim first,
//     savepoints later.
//   - The table without the lock: the primary key (key_hash, day) stops a second row within one UTC
//     day only. At midnight both attempts store. It is a backstop, nothing more.
//   - INSERT … ON CONFLICT as the claim waits for the holder: a hundred duplicates drain the pool.
//
// The lock's number is 64 bits of SHA-256. Two keys that share it cost one of them a false "in
// progress" for as long as the other's transaction lasts, never a wrong answer.
//
// # What happens when
//
//	the process dies before COMMIT      rolled back, the lock is gone; the repeat does the work
//	it dies after COMMIT                the repeat is a Replay
//	the reply to COMMIT is lost         CommitOnce runs again on a new connection
//	a duplicate arrives meanwhile       InProgress at once, without waiting
//	COMMIT waits for an absent standby  it is not cancelled; ErrOutcomeUnknown (commit.go)
//	a host vanishes with the lock       idle_in_transaction_session_timeout frees it; set it to 5 s
//	the key was used for another request    Mismatch
//	the response cannot be stored       the transaction rolls back; nothing was promised
//	today has no partition              Store fails with MissingDay; Run makes the day
//
// # Timeouts that belong together
//
// Each leaves room for the ones inside it, so that every client gets an answer and a drain ends by
// itself:
//
//	 8 s  a handler, up to its COMMIT       httpapi.handlerTimeout: the request's context
//	 5 s  the COMMIT itself                 commitTimeout
//	 3 s  finding out its outcome           outcomeTimeout, later COMMITs included
//	 1 s  the last rollback                 rollbackTimeout
//	20 s  writing the answer                http.Server.WriteTimeout: more than 8 + 5 + 3 + 1 = 17 s
//	25 s  draining after SIGTERM            cmd/api: more than WriteTimeout
//	30 s  a client's or orchestrator's patience
//
// # To copy it
//
// Take this folder without its tests, and migrations/00002_idempotency.sql (with goose, or the part
// above "+goose Down"). Then:
//
//   - Grant the program's role what it needs (below).
//   - Call ExtendRetention at the start, and KeepPartitions every few minutes.
//   - Set OnNotice in the pool's configuration if the database has a synchronous standby.
//   - Start from Handler, or call Run from a handler of your own. If you call CommitOnce instead,
//     handle MissingDay as Run does.
//   - Edit NewFingerprint if your requests are not HTTP.
//
// The role that runs all of the above, here app, needs:
//
//	GRANT SELECT, INSERT ON idempotency_keys TO app;
//	GRANT SELECT, INSERT, UPDATE ON idempotency_retention TO app;
//	GRANT EXECUTE ON FUNCTION idempotency_keys_make_partitions TO app;
//	GRANT EXECUTE ON FUNCTION idempotency_keys_drop_partitions TO app;
package idempotency
