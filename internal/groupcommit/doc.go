// Package groupcommit commits together what arrives together.
//
// An item waits only while all committers are busy; what has piled up by then is the next batch.
// There is no timer: a lone item is committed at once. Batches grow with the load by themselves,
// because a committer that comes back finds more.
//
// # Promise
//
//   - Every accepted item is answered once: with its result after its batch was committed, or with
//     an error that tells whether anything was done. Shutting down answers what was accepted.
//   - First in, first out. Items of one batch keep their order.
//   - A caller that gives up cancels nothing but its own wait. If its item was not in a batch yet,
//     it is not committed.
//   - No item fails because of another: a batch that failed because of one of its items (Split), or
//     panicked, is committed again one by one. If that fails for another reason, the rest of the
//     batch fails with it and is not tried.
//   - The queue is bounded. What does not fit is refused at once, and nothing of it was done.
//
// # No promise
//
// It knows nothing of what it commits: that a batch is one transaction, that nothing is told before
// COMMIT, and what is retried, is up to the commit function. Committing one by one must be safe
// after a batch that failed: an error of commit must mean that nothing was done, or that a repeat
// finds out.
//
// groupcommit.go takes items in, batch.go commits them.
package groupcommit
