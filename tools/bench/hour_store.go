package main

import (
	"strconv"
	"strings"
)

// A past by SQL whose books balance: the bank funds each account, and then, round after round, each
// account pays another one, and gets as much from a third. So balances and numbers of entries follow
// from the round, and 20 million payments take minutes and not hours. A round is an hour, and its
// payments are a millisecond apart; keys and events of that time were dropped long ago.
//
// An account's two entries of a round are in the order of time: of the payment that comes first.
const (
	// hour_ends are the accounts, numbered from 0.
	storeAccounts = `
CREATE UNLOGGED TABLE hour_ends AS
SELECT n, md5('account ' || n)::uuid AS id FROM generate_series(0, {accounts} - 1) n;
ALTER TABLE hour_ends ADD PRIMARY KEY (n);
INSERT INTO accounts (id, tenant_id, kind, currency, balance_minor, entry_count, created_at)
SELECT e.id, c.tenant_id, 'customer', 'USD', 1000000000, 1 + 2 * {rounds}, now() - interval '60 days'
FROM hour_ends e, ` + client + `;
UPDATE accounts SET balance_minor = balance_minor - 1000000000::bigint * {accounts}, entry_count = entry_count + {accounts}
WHERE kind = 'system' AND tenant_id = (SELECT c.tenant_id FROM ` + client + `)`

	// hour_payments are what the payments of a round have in common with their entries. Round 0 funds.
	storeRound = `
CREATE TEMP TABLE hour_payments AS
SELECT (lpad(to_hex((extract(epoch FROM t.at) * 1000)::bigint), 12, '0')
    || '7' || right(md5('r{round} ' || f.n), 3) || '8' || right(md5(f.n || ' r{round}'), 15))::uuid AS id,
  t.at, f.n, j.n AS other, f.id AS source, j.id AS destination
FROM hour_ends f
JOIN hour_ends j ON j.n = (f.n + {step}) % {accounts},
  LATERAL (SELECT date_trunc('hour', now()) - interval '50 days' + {round} * interval '1 hour' + f.n * interval '1 millisecond' AS at) t`

	storeRoundPayments = `
INSERT INTO payments (id, tenant_id, status, version, amount_minor, currency, source_account, destination_account,
  description, metadata, client_reference, processed_at, client_id, idempotency_key, fingerprint, fingerprint_version, method, route, request_id)
SELECT p.id, c.tenant_id, 'completed', 1, {amount}, 'USD', {source}, {destination},
  'Invoice 2026-001742, October', jsonb_build_object('customer', 'c-' || p.n), 'order-' || p.n, p.at, c.id,
  md5(p.id::text), sha256(uuid_send(p.id)), 1, 'POST', '/api/v1/payments', md5(p.n::text)
FROM hour_payments p, ` + client + `, ` + bank

	storeRoundEntries = `
INSERT INTO ledger_entries (tenant_id, account_id, entry_no, id, payment_id, currency, amount_minor, balance_after_minor, created_at)
SELECT c.tenant_id, e.account_id, e.entry_no, md5(p.id::text || e.amount)::uuid, p.id, 'USD', e.amount, e.balance, p.at
FROM hour_payments p, ` + client + `, ` + bank + `, LATERAL (VALUES {entries}) e (account_id, entry_no, amount, balance)`

	bank = `(SELECT a.id, a.balance_minor + 1000000000::bigint * {accounts} AS balance, a.entry_count - {accounts} AS entries
  FROM accounts a JOIN ` + client + ` USING (tenant_id) WHERE a.kind = 'system') bank`

	// Of the round's two entries of an account, that of the earlier payment comes first.
	funding = `(bank.id, bank.entries + 1 + p.n, -1000000000::bigint, bank.balance - 1000000000::bigint * (p.n + 1)), (p.destination, 1, 1000000000, 1000000000)`
	passing = `
  (p.source, CASE WHEN p.n < {step} THEN 2 * {round} ELSE 2 * {round} + 1 END, -{amount}, CASE WHEN p.n < {step} THEN 1000000000 - {amount} ELSE 1000000000 END),
  (p.destination, CASE WHEN p.n < p.other THEN 2 * {round} ELSE 2 * {round} + 1 END, {amount}, CASE WHEN p.n < p.other THEN 1000000000 + {amount} ELSE 1000000000 END)`
)

// Indexes of payments and entries are made after them: a quarter of the time.
const (
	takeIndexes = `
CREATE TABLE hour_indexes AS
SELECT i.indrelid::regclass::text AS of, i.indexrelid::regclass::text AS name, i.indisprimary AS is_key,
  CASE WHEN i.indisprimary THEN pg_get_constraintdef(c.oid) ELSE pg_get_indexdef(i.indexrelid) END AS definition
FROM pg_index i LEFT JOIN pg_constraint c ON c.conindid = i.indexrelid AND c.contype = 'p'
WHERE i.indrelid IN ('payments'::regclass, 'ledger_entries'::regclass);
DO $$ DECLARE x record; BEGIN
  FOR x IN SELECT * FROM hour_indexes LOOP
    IF x.is_key THEN EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %s', x.of, x.name);
    ELSE EXECUTE 'DROP INDEX ' || x.name; END IF;
  END LOOP;
END $$`
	makeIndexes = `
DO $$ DECLARE x record; BEGIN
  FOR x IN SELECT * FROM hour_indexes ORDER BY is_key DESC LOOP
    IF x.is_key THEN EXECUTE format('ALTER TABLE %s ADD CONSTRAINT %s %s', x.of, x.name, x.definition);
    ELSE EXECUTE x.definition; END IF;
  END LOOP;
END $$;
DROP TABLE hour_indexes, hour_ends`
)

// The indexes that payments change at random are read into memory, where a service that has run for a
// while has them.
const warmIndexes = `
SET enable_seqscan = off;
SET max_parallel_workers_per_gather = 0;
SELECT count(source_account) FROM payments;
SELECT count(destination_account) FROM payments;
SELECT count(account_id) FROM ledger_entries;
SELECT count(*) FROM accounts WHERE id > '00000000-0000-0000-0000-000000000000'`

// past returns the statements that store so many payments between so many accounts, and a quarter as
// many keys. VACUUM is one of them, so each is run on its own.
func past(payments, accounts int) (statements []string) {
	rounds := payments/accounts - 1 // besides the round that funds
	fill := func(sql string, round int) string {
		source, destination, entries, amount := "p.source", "p.destination", passing, 100+round
		if round == 0 {
			source, entries, amount = "bank.id", funding, 1_000_000_000
		}

		return strings.NewReplacer(
			"{source}", source, "{destination}", destination, "{amount}", strconv.Itoa(amount),
			"{round}", strconv.Itoa(round), "{rounds}", strconv.Itoa(rounds),
			"{step}", strconv.Itoa(1+round*7919%(accounts-1)), "{accounts}", strconv.Itoa(accounts),
			"{n}", strconv.Itoa(payments/4),
		).Replace(strings.ReplaceAll(sql, "{entries}", entries))
	}

	statements = []string{fast, fill(storeAccounts, 0), takeIndexes}
	for round := range rounds + 1 {
		statements = append(statements, fill(storeRound, round), fill(storeRoundPayments, round),
			fill(storeRoundEntries, round), `DROP TABLE hour_payments`)
	}
	return append(statements, makeIndexes, makeDays, fill(storeKeys, 0), `VACUUM ANALYZE`, `CHECKPOINT`,
		warmIndexes)
}
