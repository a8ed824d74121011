// Package tenantmove moves a tenant to another cluster: another database with its own programs.
//
// What it promises: at no time can the tenant write in both clusters, no event is lost or sent by both,
// and a repeat of an old request gets the first answer in the new cluster, byte for byte. Until the
// last step an operator can let the tenant stay.
//
// The steps, each of which may be repeated:
//
//  1. The source notes that the tenant leaves (tenant_moves). Every transaction that writes for clients
//     reads that, so when those that were open have ended nothing is written for it any more. Its
//     requests get 503 with Retry-After, and nothing is done; replays and reads go on.
//  2. What is on its way comes to rest: operations at the PSP end, the relay sends its events, the
//     worker makes webhooks of them. Holds and webhooks that are still to be sent move as they are.
//  3. All of its rows are copied in one transaction at the target, from one snapshot of the source, and
//     compared there: how many, a hash of all, and balances with entries.
//  4. The source notes that the tenant has left, for good. From now on its credentials get 503, too.
//  5. The target commits.
//
// Killed before step 5: the target has nothing, the source refuses the tenant's writes. Move again, or
// Stay. The order of 4 and 5 is what keeps the tenant from being in two clusters. Whether it may stay is
// for the target to say: a source that was restored, or failed over, may have lost the note of step 4.
//
// Not promised: that the tenant can write meanwhile. It waits for as long as the copy takes. Nor that
// one source is enough: a failover that loses the first note as well serves the tenant again. Let the
// source wait for its standby, or look after each failover.
package tenantmove
