package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"

	"github.com/oncepay/oncepay/internal/fakepsp"
	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/psp"
)

// What docker-compose.yml has as well. They protect nothing: fakepsp moves no money.
const (
	pspKey    = "psp_development"
	pspSecret = "whsec_b25jZXBheS1kZXZlbG9wbWVudC1vbmx5" // as Standard Webhooks write it
)

// repliesLost is the name under which fakepsp counts them.
const repliesLost = "replies_lost"

// spoil makes the PSP lose replies after it has charged, and doubles its webhooks. fakepsp forgets it
// when it is killed.
func (d *demo) spoil(ctx context.Context) error {
	if !d.kill {
		return nil
	}
	body, err := json.Marshal(fakepsp.Faults{LoseReply: .05, WebhookDouble: .2, WebhookShuffle: .2})
	if err != nil {
		return err
	}
	return d.askPSP(ctx, http.MethodPut, "/admin/faults", body, &struct{}{})
}

func (d *demo) pspTotals(ctx context.Context) (t fakepsp.Totals, err error) {
	return t, d.askPSP(ctx, http.MethodGet, "/admin/totals", nil, &t)
}

func (d *demo) askPSP(ctx context.Context, method, path string, body []byte, answer any) error {
	r, err := http.NewRequestWithContext(ctx, method, d.stack.psp()+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return fmt.Errorf("ask fakepsp: %w", err)
	}
	defer response.Body.Close()

	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("ask fakepsp: %s %s answered %d", method, path, response.StatusCode)
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

// readBooks reads all that the PSP has, as anyone can who has our key.
func readBooks(ctx context.Context, client *psp.Client) ([]invariant.PSPEntry, error) {
	books := []invariant.PSPEntry{}
	for _, kind := range []payments.OperationKind{payments.Charge, payments.RefundCharge} {
		for after, more := "", true; more; {
			var page []psp.Entry
			var err error
			if page, more, err = client.List(ctx, kind, after); err != nil {
				return nil, err
			}
			for _, e := range page {
				after = e.Reference
				books = append(books, invariant.PSPEntry{
					Kind: string(kind), Reference: e.Reference, ChargeReference: e.ChargeReference,
					OperationID: e.OperationID, AmountMinor: e.AmountMinor, Currency: e.Currency,
					Declined: e.Declined,
				})
			}
		}
	}
	return books, nil
}

// freeAddress finds a port that a program gets each time that it is started.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}
