package main

import (
	"context"
	"net/http"

	"github.com/oncepay/oncepay/internal/fakepsp"
)

// repliesLost is the name under which fakepsp counts them.
const repliesLost = "replies_lost"

// spoil makes the PSP lose replies after it has charged, and doubles its webhooks. fakepsp forgets it
// when it is killed.
func (d *demo) spoil(ctx context.Context) error {
	if !d.kill {
		return nil
	}
	f := fakepsp.Faults{LoseReply: .05, WebhookDouble: .2, WebhookShuffle: .2}
	return fakepsp.Ask(ctx, http.MethodPut, d.stack.PSP(), "/admin/faults", f, &f)
}

func (d *demo) pspTotals(ctx context.Context) (t fakepsp.Totals, err error) {
	err = fakepsp.Ask(ctx, http.MethodGet, d.stack.PSP(), "/admin/totals", nil, &t)
	return t, err
}
