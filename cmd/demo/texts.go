package main

import (
	"fmt"

	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/traffic"
)

// legend explains header, row what is below it.
const (
	legend = `
Six in ten requests are new payments, and a third of these only hold the money.
An eighth comes by card, through a PSP that loses replies with -kill. The others
capture, cancel and refund them, or are what clients do as well: repeat, hang
up, send one key twice, ask for too much.

  pay/s     new payments in the last second
  made      payments, declined ones included
  held      authorized: the money is held, and has not moved
  captured  of those that were held: the money, or a part of it, has moved
  canceled  the money was released on request
  expired   the money was released by the worker, after two seconds
  refunds   of payments that were captured or paid at once
  replays   repeats that got the stored answer
  backlog   events in the outbox that the relay has not sent yet
  lag       events on Kafka that the consumer has not processed yet

Each change of a payment has one event: first in backlog, then in lag.

`
	header = "       pay/s   made held captured canceled expired refunds replays  backlog  lag\n"
	row    = "%5.0f %6d %4d %8d %8d %7d %7d %7d %8d %4d"

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

	d.say(row, rate, c.Payments, c.Held, c.Captured, c.Canceled, c.Expired, c.Refunds,
		h.Replays.Load(), c.Backlog, c.Lag())
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
curl -i -w '\n' $ONCEPAY_URL/api/v1/payments \
  -H "Authorization: Bearer $ONCEPAY_TOKEN" -H 'Idempotency-Key: my-card' \
  -H 'Content-Type: application/json' -d '{
    "payment_method": {"type": "card", "token": "tok_visa"},
    "destination_account": "%s",
    "currency": "USD", "amount_minor": 700}'
                                   # 201: processing, soon completed
go run ./cmd/oncepay psp list      # what the PSP has not answered yet
go run ./cmd/oncepay key my-first  # what is stored under the key
go run ./cmd/oncepay outbox        # what waits for the relay

Ctrl-C stops the requests and counts.
`

// printCommands prints what a visitor can type. The lines fit into 80 columns, and a shell gets
// them as they are.
func (d *demo) printCommands() {
	d.print(fmt.Sprintf(commands, d.stack.URL(), d.visitor.Token, d.stack.Owner(),
		d.visitor.Accounts[0].ID, d.visitor.Accounts[1].ID, d.visitor.Accounts[0].ID))
}

// totals says what there was to count, and how the numbers belong together.
func totals(r invariant.Report, cut, lost int64, hooks webhookCount) string {
	return fmt.Sprintf(`
%8d  payments, %d of them declined for lack of money
%8d  of these held the money first: %d were captured, %d canceled,
          and %d expired
%8d  payments by card; the PSP lost %d replies after it had charged
%8d  refunds
%8d  events: %d of payments, in the order of each life, the others
          of accounts
%8d  of these sent to the webhook receiver; %d lost, %d out of order
%8d  events sent again by the relays that replaced killed ones
%8d  requests of clients, their repeats included
%8d  of these were cut off: the connection broke before the answer came;
          for %d the repeat found what had been done

`, r.Payments, r.Declined, r.Authorized, r.Captured, r.Canceled, r.Expired, r.ByCard, lost, r.Refunds, r.Events, r.PaymentEvents,
		hooks.expected-hooks.lost, hooks.lost, hooks.outOfOrder, r.Repeated, r.Exchanges, cut, r.Recovered)
}
