// Package httpapi is the HTTP side of oncepay: routes on one page (routes.go), strict decoding, authentication, the
// Idempotency-Key protocol as a client sees it, and RFC 9457 problems.
//
// # Promise
//
//   - Nothing reaches Submit that was not authenticated, decoded strictly and found valid, and what was refused before
//     Submit is stored nowhere: the key stays free for the mended request.
//   - What Submit answered is sent as it is: first answers and replays differ in headers only.
//   - Every refusal is a problem document. Causes of 5xx are logged and observed, never shown.
//   - A client never learns whether an id exists that is not its tenant's.
//
// Not promised: anything about requests that net/http itself refuses (a malformed header, more than 16 KiB of headers):
// those get a line of plain text.
//
// # Order
//
// request id → recover → authenticate → Idempotency-Key → no query → media type → size → decode and validate → rate limit
// → Submit. The key comes before the body because its absence is a mistake in the client's program, while the body may
// be its user's, and because every answer to a well-formed key echoes it. Over the rate limit the key is only looked up, so a
// finished one still gets its replay.
//
// # Problems
//
// type is "/problems/" and the code, a relative reference that names and does not locate: compare it, do not fetch it.
// instance is the path of the request, request_id the attempt's X-Request-Id. A problem that is stored under the key (402,
// 403, 422 …: see Render) has no request_id, because it is the answer to every later attempt as well: there
// Original-Request-Id tells whose it was. retry is same-key (repeat the identical request under the same key), new-key (this key is
// spent, the request may do better later or changed) or never (of no use; a mended request is another request).
package httpapi
