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
WHERE (s.currency, s.payment_count, s.debits_minor, s.credits_minor) IS DISTINCT FROM (l.currency, l.payment_count, l.debits_minor, l.credits_minor)`

// A completed payment has two entries, which sum to zero: its amount from the source and to the
// destination. A declined one has none. No entry lacks its payment.
const paymentsUnbalanced = `
SELECT format('payment %s', coalesce(e.payment_id, p.id))
FROM payments p FULL JOIN ledger_entries e ON e.payment_id = p.id
GROUP BY coalesce(e.payment_id, p.id)
HAVING (CASE min(p.status)
  WHEN 'completed' THEN count(*) = 2
    AND count(*) FILTER (WHERE e.account_id = p.source_account AND e.amount_minor = -p.amount_minor AND e.currency = p.currency) = 1
    AND count(*) FILTER (WHERE e.account_id = p.destination_account AND e.amount_minor = p.amount_minor AND e.currency = p.currency) = 1
  WHEN 'declined' THEN count(e.id) = 0
END) IS NOT TRUE`

// Both accounts belong to the payment's tenant and have its currency. Its client belongs to the
// tenant.
const paymentsAstray = `
SELECT format('payment %s', p.id)
FROM payments p
LEFT JOIN accounts s ON s.id = p.source_account
LEFT JOIN accounts d ON d.id = p.destination_account
LEFT JOIN clients c ON c.id = p.client_id
WHERE (s.tenant_id = p.tenant_id AND d.tenant_id = p.tenant_id AND s.currency = p.currency AND d.currency = p.currency) IS NOT TRUE
   OR c.tenant_id <> p.tenant_id`

const allAccounts = `SELECT count(*) FROM accounts`

// An account's balance and entry count match its entries. Entries are numbered without a gap,
// each has the balance after it, in the account's currency, and none leaves a customer below
// zero. Sums are numeric, which cannot overflow.
const balancesWrong = `
SELECT format('account %s', coalesce(a.id, e.account_id))
FROM accounts a
FULL JOIN (
  SELECT account_id, count(*) AS entry_count, sum(amount_minor) AS balance_minor, min(balance_after_minor) AS lowest,
    min(currency) AS currency, max(currency) AS other_currency,
    bool_and(entry_no = before_no + 1 AND balance_after_minor = before_minor::numeric + amount_minor) AS in_line
  FROM (
    SELECT *, lag(entry_no, 1, 0) OVER w AS before_no, lag(balance_after_minor, 1, 0) OVER w AS before_minor
    FROM ledger_entries WINDOW w AS (PARTITION BY account_id ORDER BY entry_no)
  ) numbered GROUP BY account_id
) e ON e.account_id = a.id
WHERE (a.balance_minor = coalesce(e.balance_minor, 0) AND a.entry_count = coalesce(e.entry_count, 0)
  AND (e.account_id IS NULL OR e.in_line AND e.currency = a.currency AND e.other_currency = a.currency)
  AND (a.kind = 'system' OR a.balance_minor >= 0 AND coalesce(e.lowest, 0) >= 0)) IS NOT TRUE`
