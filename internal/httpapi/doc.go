// Package httpapi is the HTTP side of oncepay: routes on one page (routes.go), strict decoding,
// authentication, the Idempotency-Key protocol as clients see it, and RFC 9457 problems.
//
// # Promise
//
//   - Only requests that were authenticated, decoded strictly and found valid reach Submit.
//     Requests refused earlier are stored nowhere: the key stays free for the corrected request.
//   - The answer of Submit is sent as it is: first answers and replays differ in headers only.
//   - Every refusal is a problem document. Causes of 5xx are logged and observed, never shown.
//   - A client cannot find out whether an id exists in another tenant.
//
// Not promised: anything about requests that net/http itself refuses (a malformed header, more than
// 16 KiB of headers). Those get a line of plain text.
//
// # Order
//
// request id → authenticate → Idempotency-Key → id in the path → If-Match → no query → media type →
// size → decode and validate → admission → Submit.
//
// The key comes before the body, because a missing key is a bug in the client's program while the
// body may be its user's mistake, and because every answer to a well-formed key echoes it. A
// request that is not admitted (admission.go: over its client's rate or its tenant's share) only
// has its key looked up, so a finished key still gets its replay.
//
// If-Match is only parsed here. It is compared with the payment's version when the command is
// decided, under the payment's lock, and the 412 is stored under the key: the repeat of a capture
// that took effect gets its 200, although the capture itself made the version another one.
//
// # Money by card
//
// A payment by card, and a refund of one, is processing in its first answer and in every replay. A GET
// with Prefer: wait waits for its end without a connection or a turn (await.go), and the PSP's
// webhooks (psp.go) are the one POST without a credential and a key: they are signed.
//
// # Problems
//
// type is "/problems/" and the code, a relative reference: compare it, do not fetch it. instance is
// the path of the request, request_id the attempt's X-Request-Id. A problem that is stored under
// the key (402, 409, 412 …: see Render) has no request_id, because it also answers later attempts;
// their Original-Request-Id names the first. retry is same-key (repeat the identical request under
// the same key), new-key (this key is used up; later or changed, the request may succeed) or never
// (a corrected request is another request).
package httpapi
