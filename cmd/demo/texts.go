package main

import (
	"fmt"

	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/traffic"
)

// legend explains header, row what is below it.
const (
	legend = `
Seven in ten requests are new payments. The others are what clients do as well:
repeat, hang up, send one key twice, pay without money.

  made       payments, declined ones included
  replayed   repeats that got the stored answer
  refused    a key used for something else, too little money, no such account
  backlog    events in the outbox that the relay has not sent yet
  lag        events on Kafka that the consumer has not processed yet
  processed  events that took effect in the consumer's tables

Each payment has one event: first in backlog, then in lag, then in processed.

`
	header = "       payments/s      made  replayed   refused   backlog      lag  processed\n"
	row    = "%10.0f %9d %9d %9d %9d %8d %10d"

	rowsPerHeader = 20
)

// sayCounts prints the row of a second, and before the first row what the columns mean.
func (d *demo) sayCounts(rows int, rate float64, c traffic.Counts, h *traffic.History) {
	if rows == 0 {
		d.print(legend)
	}
	if rows%rowsPerHeader == 0 {
		d.print(header)
	}

	d.say(row, rate, c.Payments, h.Replays.Load(), h.Refused.Load(), c.Backlog, c.Lag(), c.Consumed)
}

const commands = `
Paste this into another terminal, in this folder:

export ONCEPAY_URL=%s
export ONCEPAY_TOKEN=\
%s
export DATABASE_URL=\
'%s'
pay() {
  curl -i -w '\n' $ONCEPAY_URL/api/v1/payments \
    -H "Authorization: Bearer $ONCEPAY_TOKEN" -H 'Idempotency-Key: my-first' \
    -H 'Content-Type: application/json' -d '{
      "source_account": "%s",
      "destination_account": "%s",
      "currency": "USD", "amount_minor": '$1'}'
}

pay 2500                           # 201: a payment of 25.00 USD
pay 2500                           # 201: the same answer, and
                                   # Idempotent-Replayed: true
pay 9900                           # 422: the key belongs to another payment
go run ./cmd/oncepay key my-first  # what is stored under the key
go run ./cmd/oncepay outbox        # what waits for the relay

Ctrl-C stops the requests and counts.
`

// printCommands prints what a visitor can type. The lines fit into 80 columns, and a shell gets
// them as they are.
func (d *demo) printCommands() {
	d.print(fmt.Sprintf(commands, d.stack.url(), d.visitor.Token, d.stack.owner(),
		d.visitor.Accounts[0].ID, d.visitor.Accounts[1].ID))
}

// totals says what there was to count, and how the numbers belong together.
func totals(r invariant.Report, cut int64) string {
	return fmt.Sprintf(`
%8d  payments, %d of them declined for lack of money
%8d  events: %d of payments, the others of accounts and of parcels,
          which have many events each and so show that the order holds
%8d  events sent again by the relays that replaced killed ones
%8d  requests of clients, their repeats included
%8d  of these were cut off: the connection broke before the answer came;
          for %d the repeat found the payment

`, r.Payments, r.Declined, r.Events, r.PaymentEvents, r.Repeated, r.Exchanges, cut, r.Recovered)
}
