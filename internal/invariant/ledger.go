package invariant

// The books.

const statementRows = `SELECT count(*) FROM statements`

// Statements are built from events alone, per account and UTC day, and must equal the ledger. An
// effect that happened twice, or in part, shows here.
const statementsWrong = `
SELECT format('account %s on %s', account_id, day)
FROM statements s
FULL JOIN (
  SELECT account_id, (created_at AT TIME ZONE 'UTC')::date AS day, min(currency) AS currency, count(*) AS payment_count,
    coalesce(sum(-amount_minor) FILTER (WHERE amount_minor < 0), 0) AS debits_minor,
    coalesce(sum(amount_minor) FILTER (WHERE amount_minor > 0), 0) AS credits_minor
  FROM ledger_entries GROUP BY 1, 2
) l USING (account_id, day)
WHERE day >= (SELECT books_begin() AT TIME ZONE 'UTC') AND (s.currency, s.payment_count, s.debits_minor, s.credits_minor) IS DISTINCT FROM (l.currency, l.payment_count, l.debits_minor, l.credits_minor)`

// A completed payment has two entries besides those of its refunds. They sum to zero: what was
// captured from the source and to the destination. Any other payment has none. No entry lacks its
// payment. What is left of payments from before the books begin is in the archive, too.
const paymentsUnbalanced = `
SELECT format('payment %s', coalesce(e.payment_id, p.id))
FROM payments p FULL JOIN (SELECT * FROM ledger_entries WHERE refund_id IS NULL) e ON e.payment_id = p.id
WHERE coalesce(e.payment_id, p.id) >= (SELECT first_id(books_begin()))
GROUP BY coalesce(e.payment_id, p.id)
HAVING (CASE WHEN min(p.status) = 'completed' THEN count(*) = 2
    AND count(*) FILTER (WHERE e.account_id = p.source_account AND e.amount_minor = p.released_minor - p.amount_minor AND e.currency = p.currency) = 1
    AND count(*) FILTER (WHERE e.account_id = p.destination_account AND e.amount_minor = p.amount_minor - p.released_minor AND e.currency = p.currency) = 1
  WHEN min(p.status) IS NOT NULL THEN count(e.id) = 0
END) IS NOT TRUE`

const allRefunds = `SELECT count(*) FROM refunds`

// A completed refund has two entries of its own, which move its amount back, and any other one has
// none. No entry lacks its refund. A refund has the payment's accounts, the other way round, and its
// currency. A payment knows the sums of its refunds that are completed, and that are
// processing.
const refundsUnbalanced = `
SELECT format('refund %s', coalesce(e.refund_id, r.id))
FROM refunds r FULL JOIN (SELECT * FROM ledger_entries WHERE refund_id IS NOT NULL) e ON e.refund_id = r.id
WHERE coalesce(e.payment_id, r.payment_id) >= (SELECT first_id(books_begin()))
GROUP BY coalesce(e.refund_id, r.id)
HAVING (CASE min(r.status)
  WHEN 'completed' THEN count(*) = 2 AND bool_and(e.payment_id = r.payment_id AND e.currency = r.currency)
    AND count(*) FILTER (WHERE e.account_id = r.source_account AND e.amount_minor = -r.amount_minor) = 1
    AND count(*) FILTER (WHERE e.account_id = r.destination_account AND e.amount_minor = r.amount_minor) = 1
  ELSE count(r.id) > 0 AND count(e.id) = 0
END) IS NOT TRUE
UNION
SELECT format('refund %s', r.id)
FROM refunds r LEFT JOIN payments p ON p.id = r.payment_id AND p.tenant_id = r.tenant_id
WHERE (r.source_account = p.destination_account AND r.destination_account = p.source_account AND r.currency = p.currency) IS NOT TRUE
UNION
SELECT format('refunds of payment %s', p.id)
FROM payments p LEFT JOIN (
  SELECT payment_id, sum(amount_minor) FILTER (WHERE status = 'completed') AS refunded_minor, sum(amount_minor) FILTER (WHERE status = 'processing') AS refunding_minor
  FROM refunds GROUP BY 1
) r ON r.payment_id = p.id
WHERE (p.refunded_minor, p.refunding_minor) IS DISTINCT FROM (coalesce(r.refunded_minor, 0), coalesce(r.refunding_minor, 0))`

// Both accounts belong to the payment's tenant and have its currency. Its client belongs to the
// tenant. Entries are of their account's tenant. Events name the tenant.
const paymentsAstray = `
SELECT format('payment %s', p.id)
FROM payments p
LEFT JOIN accounts s ON s.id = p.source_account
LEFT JOIN accounts d ON d.id = p.destination_account
LEFT JOIN clients c ON c.id = p.client_id
WHERE (s.tenant_id = p.tenant_id AND d.tenant_id = p.tenant_id AND s.currency = p.currency AND d.currency = p.currency) IS NOT TRUE
   OR c.tenant_id <> p.tenant_id
UNION ALL
SELECT format('event %s', o.event_id)
FROM outbox_events o JOIN payments p ON p.id::text = o.aggregate_id
WHERE o.aggregate_type = 'payments'
  AND (o.tenant_id IS DISTINCT FROM p.tenant_id OR o.headers->>'ce_tenantid' IS DISTINCT FROM p.tenant_id::text)
UNION ALL
SELECT format('event %s', o.event_id)
FROM outbox_events o JOIN accounts a ON a.id::text = o.aggregate_id
WHERE o.aggregate_type = 'accounts'
  AND (o.tenant_id IS DISTINCT FROM a.tenant_id OR o.headers->>'ce_tenantid' IS DISTINCT FROM a.tenant_id::text)
UNION ALL
SELECT format('entry %s', e.id)
FROM ledger_entries e JOIN accounts a ON a.id = e.account_id
WHERE e.tenant_id <> a.tenant_id`

const allAccounts = `SELECT count(*) FROM accounts`

// An account's balance and entry count match its opening, if entries were archived, and its entries
// since. Those are numbered without a gap, each has the balance after it, in the account's currency,
// and none leaves a customer below zero. Sums are numeric, which cannot overflow.
const balancesWrong = `
SELECT format('account %s', coalesce(a.id, e.account_id))
FROM (
  SELECT a.*, coalesce(o.entry_no, 0) AS opened, coalesce(o.balance_minor, 0) AS opening
  FROM accounts a LEFT JOIN ledger_openings o ON o.account_id = a.id
) a
FULL JOIN (
  SELECT account_id, count(*) AS entry_count, sum(amount_minor) AS balance_minor, min(balance_after_minor) AS lowest,
    min(currency) AS currency, max(currency) AS other_currency,
    bool_and(entry_no = before_no + 1 AND balance_after_minor = before_minor::numeric + amount_minor) AS in_line
  FROM (
    SELECT e.*, lag(e.entry_no, 1, coalesce(o.entry_no, 0)) OVER w AS before_no,
      lag(balance_after_minor, 1, coalesce(o.balance_minor, 0)) OVER w AS before_minor
    FROM ledger_entries e LEFT JOIN ledger_openings o USING (account_id)
    WHERE e.entry_no > coalesce(o.entry_no, 0)
    WINDOW w AS (PARTITION BY account_id ORDER BY e.entry_no)
  ) numbered GROUP BY account_id
) e ON e.account_id = a.id
WHERE (a.balance_minor = a.opening + coalesce(e.balance_minor, 0) AND a.entry_count = a.opened + coalesce(e.entry_count, 0)
  AND (e.account_id IS NULL OR e.in_line AND e.currency = a.currency AND e.other_currency = a.currency)
  AND (a.kind <> 'customer' OR a.balance_minor >= 0 AND coalesce(e.lowest, 0) >= 0)) IS NOT TRUE`

// An account holds the sum of its authorized payments and of the refunds from it that are
// processing, and no customer holds more than it has.
const holdsWrong = `
SELECT format('account %s', coalesce(a.id, h.source_account))
FROM accounts a
FULL JOIN (
  SELECT source_account, sum(amount_minor) AS held_minor
  FROM (SELECT source_account, amount_minor FROM payments WHERE status = 'authorized'
        UNION ALL SELECT source_account, amount_minor FROM refunds WHERE status = 'processing') held
  GROUP BY 1
) h ON h.source_account = a.id
WHERE a.held_minor IS DISTINCT FROM coalesce(h.held_minor, 0)
   OR a.kind = 'customer' AND a.held_minor > greatest(a.balance_minor, 0)`
