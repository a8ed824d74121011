#!/usr/bin/env bash
# The whole chain in containers, seen with other people's eyes: a payment is sent to what `make up` started, and found on the topic
# by Kafka's own console consumer and in the statements by psql.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "compose: $*" >&2; docker compose logs --tail 20 >&2; exit 1; }
sql() { docker compose exec -T postgres psql --username postgres --dbname oncepay --tuples-only --no-align --command "$1"; }
await() { # await WHAT WANT COMMAND… repeats a command for up to 30 s until it prints WANT
  local what=$1 want=$2 got=
  shift 2
  for _ in $(seq 60); do
    got=$("$@") && [ "$got" = "$want" ] && { echo "compose: $what: $got"; return; }
    sleep 0.5
  done
  fail "$what: $got instead of $want"
}

seeded=$(docker compose run --rm -T oncepay seed --tenant "compose-$$" --client shop --currency USD --accounts 2 --fund 100000 --json)
field() { sed -n "s/.*\"$1\": \"\([^\"]*\)\".*/\1/p" <<<"$seeded"; }
token=$(field token)
mapfile -t accounts < <(sed -n '/"accounts"/,$ s/.*"id": "\([^"]*\)".*/\1/p' <<<"$seeded")
[ -n "$token" ] && [ ${#accounts[@]} -eq 2 ] || fail "seed printed: $seeded"

body="{\"amount_minor\":2500,\"currency\":\"USD\",\"source_account\":\"${accounts[0]}\",\"destination_account\":\"${accounts[1]}\"}"
pay() {
  curl --silent --show-error --include --max-time 20 http://127.0.0.1:8080/api/v1/payments \
    --header "Authorization: Bearer $token" --header "Idempotency-Key: compose-$$" --header 'Content-Type: application/json' --data "$body"
}
first=$(pay) repeat=$(pay)
grep -q '^HTTP/1.1 201' <<<"$first" || fail "first: $first"
grep -qi '^idempotent-replayed: true' <<<"$repeat" || fail "repeat: $repeat"
payment=$(sed -n 's/^{"id":"\([^"]*\)".*/\1/p' <<<"$first")
[ "$(tail -1 <<<"$first")" = "$(tail -1 <<<"$repeat")" ] || fail "the repeat differs: $first $repeat"
echo "compose: payment $payment is made, and its repeat is identical"

on_topic() {
  docker compose exec -T kafka /opt/kafka/bin/kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic oncepay.payments \
    --from-beginning --isolation-level read_committed --timeout-ms 5000 2>/dev/null | grep -c "\"id\":\"$payment\"" || true
}
await "events of the payment on the topic" 1 on_topic
await "debits in the statement of the source" 2500 sql "SELECT debits_minor FROM statements WHERE account_id = '${accounts[0]}'"
await "credits in the statement of the destination" 102500 sql "SELECT credits_minor FROM statements WHERE account_id = '${accounts[1]}'"

by_hand() { ONCEPAY_TOKEN=$token docker compose run --rm -T oncepay "$@"; }
shows() { # shows PATTERN COMMAND… says whether oncepay prints such a line
  local pattern=$1
  shift
  grep -q "$pattern" <<<"$(by_hand "$@")" || fail "oncepay $* does not show $pattern"
}
shows '^status  *completed$' get "$payment"
shows '^status  *completed$' key "compose-$$"
shows '^  "agrees": true$' statement "${accounts[0]}" --json
shows '^main ' outbox
paid_by_hand=(pay --key "by-hand-$$" --from "${accounts[0]}" --to "${accounts[1]}" --amount 2500 --currency USD)
shows '^status  *completed$' "${paid_by_hand[@]}"
shows 'it was done once' "${paid_by_hand[@]}"
echo "compose: oncepay shows the payment, its key, the statement and the outbox, and pays once"
