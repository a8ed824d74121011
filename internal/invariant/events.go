package invariant

// Payments, their events, the topics, and the consumer's work on them.

const rowsSince = `
SELECT (SELECT count(*) FROM payments WHERE processed_at >= (SELECT outbox_since FROM bounds))
     + (SELECT count(*) FROM refunds WHERE processed_at >= (SELECT outbox_since FROM bounds))
     + (SELECT count(*) FROM accounts WHERE created_at >= (SELECT outbox_since FROM bounds))`

// Both directions are checked. Every version of a payment has its event, the last one in agreement
// with the payment's status, every refund has one that names it, and a second one if it was with
// the PSP and has ended, and every account has its first one. No event tells of a missing payment, refund or account:
// but an old payment that was refunded lately may have left for the archive before its last events were dropped.
const eventsMissing = `
SELECT format('payment %s version %s', p.id, v)
FROM payments p CROSS JOIN LATERAL generate_series(1, p.version) v
LEFT JOIN outbox_events o ON o.aggregate_type = 'payments' AND o.aggregate_id = p.id::text AND o.aggregate_version = v
WHERE p.processed_at >= (SELECT outbox_since FROM bounds)
  AND (o.event_id IS NULL OR v = p.version
    AND CASE WHEN o.event_type LIKE 'refund.%' THEN 'completed' ELSE replace(o.event_type, 'payment.', '') END <> p.status)
UNION ALL
SELECT format('refund %s', r.id)
FROM refunds r
WHERE r.processed_at >= (SELECT outbox_since FROM bounds)
  AND NOT EXISTS (SELECT FROM outbox_events o
                  WHERE o.aggregate_type = 'payments' AND o.aggregate_id = r.payment_id::text AND o.aggregate_version = r.payment_version
                    AND o.event_type = 'refund.' || CASE WHEN r.settled_at IS NOT NULL THEN 'processing' ELSE r.status END
                    AND position(convert_to(r.id::text, 'UTF8') IN o.payload) > 0)
UNION ALL
SELECT format('end of refund %s', r.id)
FROM refunds r
WHERE r.processed_at >= (SELECT outbox_since FROM bounds) AND r.settled_at IS NOT NULL
  AND NOT EXISTS (SELECT FROM outbox_events o
                  WHERE o.aggregate_type = 'payments' AND o.aggregate_id = r.payment_id::text AND o.aggregate_version > r.payment_version
                    AND o.event_type = 'refund.' || r.status AND position(convert_to(r.id::text, 'UTF8') IN o.payload) > 0)
UNION ALL
SELECT format('event %s', o.event_id)
FROM outbox_events o
WHERE o.aggregate_type = 'payments' AND o.event_type LIKE 'refund.%'
  AND o.aggregate_id COLLATE "C" >= (SELECT first_id(books_begin())::text)
  AND NOT EXISTS (SELECT FROM refunds r WHERE r.payment_id::text = o.aggregate_id
                    AND (r.payment_version = o.aggregate_version OR o.event_type = 'refund.' || r.status AND r.settled_at IS NOT NULL
                      AND o.aggregate_version > r.payment_version AND position(convert_to(r.id::text, 'UTF8') IN o.payload) > 0))
UNION ALL
SELECT format('account %s', a.id)
FROM accounts a
WHERE a.created_at >= (SELECT outbox_since FROM bounds)
  AND NOT EXISTS (SELECT FROM outbox_events o
                  WHERE o.aggregate_type = 'accounts' AND o.aggregate_id = a.id::text AND o.aggregate_version = 1 AND o.event_type = 'account.opened')
UNION ALL
SELECT format('event %s', o.event_id)
FROM outbox_events o
WHERE o.aggregate_type = 'payments' AND o.aggregate_id COLLATE "C" >= (SELECT first_id(books_begin())::text)
  AND NOT EXISTS (SELECT FROM payments p WHERE p.id::text = o.aggregate_id)
UNION ALL
SELECT format('event %s', o.event_id)
FROM outbox_events o
WHERE o.aggregate_type = 'accounts' AND NOT EXISTS (SELECT FROM accounts a WHERE a.id::text = o.aggregate_id)`

const paymentEvents = `SELECT count(*) FROM outbox_events WHERE aggregate_type = 'payments'`

// Each event of a payment may follow the one before it. Like what a consumer relies on, this table
// is written down once more instead of taken from the service. The first events of an old payment may
// have been dropped.
const transitionsIllegal = `
WITH life (before, next) AS (VALUES
  ('', 'payment.authorized'), ('', 'payment.completed'), ('', 'payment.declined'), ('', 'payment.processing'),
  ('payment.processing', 'payment.completed'), ('payment.processing', 'payment.declined'), ('payment.processing', 'payment.failed'),
  ('payment.authorized', 'payment.completed'), ('payment.authorized', 'payment.canceled'), ('payment.authorized', 'payment.expired'),
  ('payment.completed', 'refund.completed'), ('payment.completed', 'refund.declined'), ('payment.completed', 'refund.processing')
  UNION ALL SELECT 'refund.' || before, 'refund.' || next
  FROM unnest(ARRAY['processing', 'completed', 'declined', 'failed']) before, unnest(ARRAY['processing', 'completed', 'declined', 'failed']) next
)
SELECT format('payment %s: %s after %s', aggregate_id, event_type, coalesce(nullif(told.before, ''), 'nothing'))
FROM (
  SELECT aggregate_id, event_type, CASE aggregate_version WHEN 1 THEN ''
    ELSE lag(event_type) OVER (PARTITION BY aggregate_id COLLATE "C" ORDER BY aggregate_version) END AS before
  FROM outbox_events WHERE aggregate_type = 'payments'
) told
LEFT JOIN life ON life.before = told.before AND life.next = event_type
WHERE told.before IS NOT NULL AND life.next IS NULL`

// Wherever topics have deleted records there is a minute of grace: a transaction may have stayed
// open, so that its events were sent after younger ones.
const outboxSince = `SELECT count(*) FROM outbox_events WHERE created_at >= (SELECT topics_since + interval '1 minute' FROM bounds)`

const eventsLost = `
SELECT format('event %s', o.event_id)
FROM outbox_events o
WHERE o.created_at >= (SELECT topics_since + interval '1 minute' FROM bounds)
  AND NOT EXISTS (SELECT FROM topic_records r WHERE r.event_id = o.event_id)`

const allRecords = `SELECT count(*) FROM topic_records`

// Older events may have been in a day of the outbox that was dropped.
const eventsPhantom = `
SELECT format('%s partition %s offset %s', r.aggregate_type, r.partition, r."offset")
FROM topic_records r
WHERE (r.created_at >= (SELECT outbox_since FROM bounds) OR r.created_at IS NULL OR r.event_id IS NULL)
  AND NOT EXISTS (SELECT FROM outbox_events o WHERE o.event_id = r.event_id)`

const eventsChanged = `
SELECT format('event %s', o.event_id)
FROM topic_records r JOIN outbox_events o ON o.event_id = r.event_id
WHERE r.malformed IS NOT NULL OR (r.aggregate_type, r.aggregate_id, r.event_type, r.aggregate_version, r.created_at, r.tenant_id, r.digest)
  IS DISTINCT FROM (o.aggregate_type, o.aggregate_id, o.event_type, o.aggregate_version, o.created_at, o.headers->>'ce_tenantid', sha256(o.payload))`

const eventsRepeated = `
SELECT format('event %s', event_id)
FROM (SELECT event_id, count(*) AS n FROM topic_records WHERE event_id IS NOT NULL GROUP BY event_id HAVING count(*) > 1) r
CROSS JOIN LATERAL generate_series(2, n)`

// An aggregate with one event has no order to check.
const severalRecords = `
SELECT coalesce(sum(n), 0)::bigint
FROM (SELECT count(*) AS n FROM topic_records GROUP BY aggregate_type, aggregate_id HAVING count(DISTINCT event_id) > 1) several`

// An aggregate's events go to one partition, and their first records are in the order of their
// ids. The versions of its rows are consecutive, though the first ones may have been dropped.
// Most aggregates have one event and are filtered out early.
const eventsOutOfOrder = `
WITH several AS MATERIALIZED (
  SELECT * FROM topic_records
  WHERE (aggregate_type, aggregate_id) IN (SELECT aggregate_type, aggregate_id FROM topic_records GROUP BY 1, 2 HAVING count(*) > 1)
), grown AS MATERIALIZED (
  SELECT aggregate_type, aggregate_id FROM outbox_events GROUP BY 1, 2 HAVING count(*) > 1
)
SELECT format('%s %s at partition %s offset %s', aggregate_type, aggregate_id, partition, "offset")
FROM (
  SELECT r.*, o.id, lag(o.id) OVER (PARTITION BY r.aggregate_type, r.aggregate_id COLLATE "C" ORDER BY r.partition, r."offset") AS before
  FROM (SELECT DISTINCT ON (event_id) * FROM several ORDER BY event_id, partition, "offset") r JOIN outbox_events o ON o.event_id = r.event_id
) firsts WHERE id < before
UNION ALL
SELECT format('%s %s in partitions %s and %s', aggregate_type, aggregate_id, min(partition), max(partition))
FROM several GROUP BY aggregate_type, aggregate_id HAVING min(partition) <> max(partition)
UNION ALL
SELECT format('%s %s version %s after %s', aggregate_type, aggregate_id, aggregate_version, before)
FROM (
  SELECT aggregate_type, aggregate_id, aggregate_version, lag(aggregate_version) OVER (PARTITION BY aggregate_type, aggregate_id COLLATE "C" ORDER BY id) AS before
  FROM outbox_events JOIN grown USING (aggregate_type, aggregate_id)
) versions WHERE aggregate_version <> before + 1`

const consumedRecords = `SELECT count(*) FROM topic_records WHERE aggregate_type IN ('payments', 'accounts')`

const effectsLost = `
SELECT DISTINCT format('event %s', r.event_id)
FROM topic_records r
WHERE r.aggregate_type IN ('payments', 'accounts') AND r.event_id IS NOT NULL
  AND NOT EXISTS (SELECT FROM inbox_events i WHERE i.consumer = (SELECT consumer FROM bounds) AND i.event_id = r.event_id)
  AND NOT EXISTS (SELECT FROM inbox_dead_letters l WHERE l.consumer = (SELECT consumer FROM bounds) AND l.event_id = r.event_id)`

const inboxRows = `SELECT count(*) FROM inbox_events WHERE consumer = (SELECT consumer FROM bounds)`

// The inbox outlives the topics' records. Where topics have deleted some, an event's age comes
// from its id (a UUIDv7, as all of this service's are), or from the time of its effect if it has
// another id.
const effectsPhantom = `
SELECT format('event %s', i.event_id)
FROM inbox_events i
WHERE i.consumer = (SELECT consumer FROM bounds)
  AND NOT EXISTS (SELECT FROM topic_records r WHERE r.event_id = i.event_id)
  AND CASE WHEN substr(i.event_id::text, 15, 1) = '7' THEN to_timestamp(('x' || translate(left(i.event_id::text, 13), '-', ''))::bit(48)::bigint / 1000.0)
           ELSE i.processed_at END >= (SELECT topics_since + interval '1 minute' FROM bounds)`
