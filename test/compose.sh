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

# What README and runbook tell a reader to type, as it is written there.
documented() { # documented BEGINNING prints the command that begins so, on one line
  sed -e :a -e '/\\$/{N;s/ *\\\n */ /;ba' -e '}' README.md docs/operating.md |
    awk -v beginning="$1" '{ sub(/^ +/, "") } index($0, beginning) == 1 && !found++ { print }' | grep . || fail "no document has $1"
}
in_kafka() { docker compose exec -T kafka sh -c "PATH=\$PATH:/opt/kafka/bin KAFKA=localhost:9092; $1"; }
prints() { # prints PATTERN COMMAND… repeats a command up to three times until it prints such a line
  local pattern=$1 out=
  shift
  for _ in 1 2 3; do
    out=$("$@") && grep -q "$pattern" <<<"$out" && return
  done
  fail "$* does not print $pattern: $out"
}
from_here() { docker run --rm --network host postgres:17 sh -c "$1"; } # this machine may have no psql
shopt -s expand_aliases
eval "$(documented 'alias oncepay=')"
eval 'export ONCEPAY_TOKEN=$token; oncepay get $payment' </dev/null | grep -q completed || fail "the README's alias shows no payment"
prints "$payment" from_here "$(documented 'psql postgres://')"
sh -c "$(documented 'docker compose run --rm relay /relay dead-letters list')" </dev/null
prints '^main' in_kafka "$(documented 'kafka-console-consumer.sh')"
prints 'oncepay.payments' in_kafka "$(documented 'kafka-consumer-groups.sh --bootstrap-server $KAFKA --describe')"

# More partitions, but of a topic that nothing is sent to; offsets, but of yesterday, and nothing takes effect twice.
in_kafka "kafka-topics.sh --bootstrap-server \$KAFKA --create --topic scratch-$$ --partitions 12" >/dev/null
more=$(documented 'kafka-topics.sh --bootstrap-server $KAFKA --alter')
in_kafka "${more/oncepay.payments/scratch-$$}"
prints 'PartitionCount: 24' in_kafka "kafka-topics.sh --bootstrap-server \$KAFKA --describe --topic scratch-$$"
docker compose stop consumer
in_kafka "$(documented 'kafka-consumer-groups.sh --bootstrap-server $KAFKA --group statements --reset-offsets --to-earliest')"
reset=$(documented 'kafka-consumer-groups.sh --bootstrap-server $KAFKA --group statements --reset-offsets --to-datetime')
in_kafka "$(sed "s/[0-9-]*T[0-9:.]*/$(date -u -d yesterday +%FT%T.000)/" <<<"$reset")"
docker compose start consumer

# A relay that is killed runs again by itself.
began() { docker inspect -f '{{.State.StartedAt}}' "$(docker compose ps -q relay)"; }
before=$(began)
eval "$(documented 'pid=$(docker inspect')"
eval "$(documented 'docker run --rm --pid=host')"
again() { [ "$(began)" != "$before" ] && docker compose ps --status running --services | grep -x relay; }
await "after its process was killed there runs" relay again
await "debits in the statement after everything was delivered again" 5000 sql "SELECT debits_minor FROM statements WHERE account_id = '${accounts[0]}'"
echo "compose: what README and runbook show works"
