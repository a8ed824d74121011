package invariant

// What clients were told, and what their keys did.

const allPayments = `SELECT count(*) FROM payments`

// kept selects the answers that the service stores under their key and replays: successes, and
// refusals that were decided on data.
const kept = `(x.status BETWEEN 200 AND 299
    OR x.code IN ('insufficient-funds', 'unknown-account', 'currency-mismatch', 'funding-forbidden', 'amount-out-of-range', 'system-account-exists',
      'clearing-account-exists', 'cards-not-enabled', 'same-account', 'not-found', 'version-mismatch', 'invalid-state', 'authorization-expired', 'amount-exceeds-authorized', 'amount-exceeds-captured'))`

// later selects the effects of captures, cancels and refunds, and what was captured or refunded. An
// expiry is nobody's command, and neither is what the PSP made of a payment or a refund: the client
// was told that it is processing.
const later = `
SELECT c.tenant_id, c.client_id, c.idempotency_key AS key, c.method, c.payment_id, c.version, c.processed_at,
  p.status, p.amount_minor AS authorized_minor, p.amount_minor - p.released_minor AS captured_minor,
  r.id AS refund_id, r.amount_minor AS refund_minor, r.id IS NOT NULL AND (r.status = 'processing' OR r.settled_at IS NOT NULL) AS refund_by_card,
  r.id IS NOT NULL AND r.status = 'declined' AND r.settled_at IS NULL AS refused
FROM payment_commands c
JOIN payments p ON p.tenant_id = c.tenant_id AND p.id = c.payment_id
LEFT JOIN refunds r ON r.payment_id = c.payment_id AND r.payment_version = c.version`

// asked is true if x asked for the effect c of later. A payment is captured or canceled once.
const asked = `x.payment_id = c.payment_id AND CASE x.command
    WHEN 'capture' THEN c.refund_id IS NULL AND c.status = 'completed'
      AND c.captured_minor = coalesce(nullif(x.amount_minor, 0), c.authorized_minor)
    WHEN 'cancel' THEN c.status = 'canceled'
    WHEN 'refund' THEN x.amount_minor IN (0, c.refund_minor) END`

// paidFrom is true if the payment p is paid from where x asked.
const paidFrom = `CASE x.command WHEN 'charge' THEN p.payment_method = 'card' ELSE p.payment_method = 'account' AND p.source_account = x.source_account END`

const acknowledged = `SELECT count(*) FROM exchanges WHERE status BETWEEN 200 AND 299 OR status = 402`

// A payment that was acknowledged as authorized may be captured or canceled by now, and one by card
// may have ended in every way. Only what is declined at once, without a PSP, is answered with 402.
//
// acknowledgedMissing skips keys that were answered for two requests; reusedKeysAccepted lists
// them.
const acknowledgedMissing = `
WITH missing AS MATERIALIZED (
  SELECT DISTINCT client_id, key, request
  FROM exchanges x
  WHERE (x.status BETWEEN 200 AND 299 OR x.status = 402) AND x.payment_id IS NULL
    AND NOT EXISTS (
      SELECT FROM payments p
      WHERE p.client_id = x.client_id AND p.idempotency_key = x.key
        AND p.amount_minor = x.amount_minor AND p.currency = x.currency
        AND ` + paidFrom + ` AND p.destination_account = x.destination_account
        AND (x.status = 402) = (p.status = 'declined' AND p.settled_at IS NULL)
        AND (x.status = 402 OR (p.authorization_expires_at IS NOT NULL) = (x.command = 'authorize')))
  UNION
  SELECT DISTINCT client_id, key, request
  FROM exchanges x
  WHERE (x.status BETWEEN 200 AND 299 OR x.status = 402) AND x.payment_id IS NOT NULL
    AND NOT EXISTS (
      SELECT FROM (` + later + `) c
      WHERE c.client_id = x.client_id AND c.key = x.key AND ` + asked + `
        AND (x.status = 402) = c.refused)
)
SELECT format('client %s key %s', client_id, key)
FROM missing m
WHERE NOT EXISTS (SELECT FROM exchanges x WHERE x.client_id = m.client_id AND x.key = m.key AND x.request <> m.request AND ` + kept + `)`

// POST only: what an operator does on a client's behalf is in no history.
const effectsOfHistory = `
SELECT (SELECT count(*) FROM payments WHERE method = 'POST' AND client_id IN (SELECT client_id FROM exchanges))
     + (SELECT count(*) FROM payment_commands WHERE method = 'POST' AND client_id IN (SELECT client_id FROM exchanges))`

// If the client was told of an effect under the key, acknowledgedMissing compares what was paid
// with what was asked for.
const nobodyAskedFor = `
SELECT format('payment %s', p.id)
FROM payments p
WHERE p.method = 'POST' AND p.client_id IN (SELECT client_id FROM exchanges)
  AND NOT EXISTS (
    SELECT FROM exchanges x
    WHERE x.client_id = p.client_id AND x.key = p.idempotency_key
      AND (x.status BETWEEN 200 AND 299 OR x.status = 402
        OR x.code <> 'idempotency-key-reused' AND x.amount_minor = p.amount_minor AND x.currency = p.currency
          AND ` + paidFrom + ` AND x.destination_account = p.destination_account))
UNION ALL
SELECT format('payment %s version %s', c.payment_id, c.version)
FROM (` + later + `) c
WHERE c.method = 'POST' AND c.client_id IN (SELECT client_id FROM exchanges)
  AND NOT EXISTS (
    SELECT FROM exchanges x
    WHERE x.client_id = c.client_id AND x.key = c.key
      AND (x.status BETWEEN 200 AND 299 OR x.status = 402 OR x.code <> 'idempotency-key-reused' AND ` + asked + `))`

const keptAnswers = `SELECT count(*) FROM exchanges x WHERE ` + kept

// One request of one key has one answer, byte for byte. If the key is still stored, its answer is
// among those given.
const answersChanged = `
SELECT format('client %s key %s', client_id, key)
FROM (
  SELECT client_id, key FROM exchanges x WHERE ` + kept + `
  GROUP BY client_id, key, request HAVING min(status || encode(answer, 'hex') COLLATE "C") <> max(status || encode(answer, 'hex') COLLATE "C")
  UNION
  SELECT client_id, key FROM idempotency_keys k
  WHERE NOT EXISTS (SELECT FROM exchanges x WHERE x.client_id = k.client_id AND x.key = k.key AND ` + kept + `
                      AND x.status = k.status AND x.answer = sha256(k.body))
    AND EXISTS (SELECT FROM exchanges x WHERE x.client_id = k.client_id AND x.key = k.key AND ` + kept + `)
) changed`

// Of different requests under one key, one is answered. The others are refused, and that refusal is
// not kept.
const reusedKeysAccepted = `
SELECT format('client %s key %s', client_id, key)
FROM (SELECT DISTINCT client_id, key, request FROM exchanges x WHERE ` + kept + `) answered
GROUP BY client_id, key
HAVING count(*) > 1`

const refusedAsReused = `SELECT count(DISTINCT (client_id, key, request)) FROM exchanges WHERE code = 'idempotency-key-reused'`

// A client is told that a key belongs to another request only if it sent another one under it and
// was never answered for this one.
const refusedForNothing = `
SELECT format('client %s key %s', client_id, key)
FROM (
  SELECT client_id, key, request, bool_or(code = 'idempotency-key-reused') AS refused, bool_or(` + kept + `) AS answered,
    count(*) OVER (PARTITION BY client_id, key) AS requests
  FROM exchanges x GROUP BY client_id, key, request
) told
WHERE refused AND (answered OR requests = 1)`

// The first answer of a key is given once. Every later copy is marked as a replay.
const repeatsUnmarked = `
SELECT format('client %s key %s', client_id, key)
FROM exchanges x
WHERE ` + kept + ` AND NOT replayed
GROUP BY client_id, key, request
HAVING count(*) > 1`

const effectsAndAnswers = `
SELECT (SELECT count(*) FROM payments) + (SELECT count(*) FROM payment_commands) + (SELECT count(*) FROM idempotency_keys)`

// Once its answer has expired, a key may take effect again. The primary key cannot catch repeats:
// it holds for one day only.
const keysTwice = `
WITH effects AS MATERIALIZED (
  SELECT client_id, idempotency_key AS key, processed_at FROM payments
  UNION ALL
  SELECT client_id, idempotency_key, processed_at FROM payment_commands
), repeated AS MATERIALIZED (
  SELECT client_id, key FROM effects GROUP BY 1, 2 HAVING count(*) > 1
), answered AS MATERIALIZED (
  SELECT client_id, key FROM idempotency_keys GROUP BY 1, 2 HAVING count(*) > 1
)
SELECT format('client %s key %s', client_id, key)
FROM (
  SELECT client_id, key, e.processed_at - lag(e.processed_at) OVER (PARTITION BY client_id, key ORDER BY e.processed_at) AS pause
  FROM repeated JOIN effects e USING (client_id, key)
  UNION ALL
  SELECT client_id, key, k.created_at - lag(k.created_at) OVER (PARTITION BY client_id, key ORDER BY k.created_at)
  FROM answered JOIN idempotency_keys k USING (client_id, key)
) again
WHERE pause < (SELECT keep FROM bounds)
GROUP BY client_id, key`

const effectsAndAnswersSince = `
SELECT (SELECT count(*) FROM payments WHERE processed_at >= (SELECT keys_since FROM bounds))
     + (SELECT count(*) FROM payment_commands WHERE processed_at >= (SELECT keys_since FROM bounds))
     + (SELECT count(*) FROM idempotency_keys WHERE created_at >= (SELECT keys_since FROM bounds))`

// Both directions are checked. A payment, and each later change but an expiry, has its key's answer,
// and that answer is not about an account. The check goes by status and location, which is empty where an operator paid by hand;
// bodies would not fit into a hash table. What came of a card is nobody's command. And an answer about a payment or a refund (by its members,
// as 402) has its effect, with a second of grace, since those are dated to the millisecond; of one
// by card it says that it is processing.
const answersMissing = `
SELECT format('payment %s', p.id)
FROM payments p
WHERE p.processed_at >= (SELECT keys_since FROM bounds)
  AND NOT EXISTS (SELECT FROM idempotency_keys k
                  WHERE k.tenant_id = p.tenant_id AND k.client_id = p.client_id AND k.key = p.idempotency_key
                    AND k.created_at >= (SELECT keys_since FROM bounds)
                    AND CASE WHEN p.status = 'declined' AND p.settled_at IS NULL THEN k.status = 402 ELSE k.status = 201 AND k.location NOT LIKE '%/accounts/%' END)
UNION ALL
SELECT format('payment %s version %s', c.payment_id, c.version)
FROM (` + later + `) c
WHERE c.processed_at >= (SELECT keys_since FROM bounds)
  AND NOT EXISTS (SELECT FROM idempotency_keys k
                  WHERE k.tenant_id = c.tenant_id AND k.client_id = c.client_id AND k.key = c.key
                    AND k.created_at >= (SELECT keys_since FROM bounds)
                    AND CASE WHEN c.refused THEN k.status = 402 ELSE k.status BETWEEN 200 AND 299 AND k.location NOT LIKE '%/accounts/%' END)
UNION ALL
SELECT format('payment %s version %s', o.aggregate_id, o.aggregate_version)
FROM outbox_events o
LEFT JOIN payments p ON p.id::text = o.aggregate_id
LEFT JOIN refunds r ON r.payment_id::text = o.aggregate_id AND r.payment_version = o.aggregate_version
WHERE o.aggregate_type = 'payments' AND o.aggregate_version > 1 AND o.event_type <> 'payment.expired'
  AND (p.payment_method = 'account' OR r.id IS NOT NULL) IS NOT FALSE
  AND NOT EXISTS (SELECT FROM payment_commands c WHERE c.payment_id::text = o.aggregate_id AND c.version = o.aggregate_version)
UNION ALL
SELECT format('answer of client %s key %s', k.client_id, k.key)
FROM idempotency_keys k
WHERE k.created_at >= (SELECT keys_since FROM bounds) + interval '1 second'
  AND (k.status BETWEEN 200 AND 299 AND position('"source_account"'::bytea IN k.body) > 0 OR k.status = 402)
  AND NOT EXISTS (SELECT FROM payments p
                  WHERE p.tenant_id = k.tenant_id AND p.client_id = k.client_id AND p.idempotency_key = k.key
                    AND (k.status = 402) = (p.status = 'declined' AND p.settled_at IS NULL)
                    AND (position(convert_to('{"id":"' || p.id || '","status":"processing"', 'UTF8') IN k.body) = 1) = (p.payment_method = 'card')
                    AND position(convert_to(p.id::text, 'UTF8') IN k.body) > 0)
  AND NOT EXISTS (SELECT FROM (` + later + `) c
                  WHERE c.tenant_id = k.tenant_id AND c.client_id = k.client_id AND c.key = k.key
                    AND (k.status = 402) = c.refused
                    AND (position(convert_to('{"id":"' || c.refund_id || '","payment_id":"' || c.payment_id || '","status":"processing"', 'UTF8') IN k.body) = 1)
                      IS NOT DISTINCT FROM CASE WHEN c.refund_id IS NOT NULL THEN c.refund_by_card END
                    AND position(convert_to(c.payment_id::text, 'UTF8') IN k.body) > 0)`
