package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/webhooks"
)

func TestWebhookCommands(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	if out := must(t, s.env, "webhooks", "list"); out != "there are no webhook endpoints\n" {
		t.Error(out)
	}

	// The secret is shown, and to the same command under the same key again.
	create := []string{"webhooks", "create", "--url", "https://example.com/hooks", "--types", "payment.completed,refund.completed", "--key", "c"}
	var made, again webhooks.Secret
	mustJSON(t, &made, s.env, create...)
	mustJSON(t, &again, s.env, create...)
	if made.Secret != again.Secret || made.ID != again.ID || !strings.HasPrefix(made.Secret, "whsec_") {
		t.Errorf("%+v, repeated %+v", made, again)
	}
	id := made.ID.String()
	wantLines(t, must(t, s.env, create...), "endpoint "+id, "secret "+strings.ReplaceAll(made.Secret, "+", `\+`))
	wantLines(t, must(t, s.env, "webhooks", "get", id), "endpoint "+id, "url https://example.com/hooks",
		"events payment.completed, refund.completed", "state enabled", "created "+at)
	wantLines(t, must(t, s.env, "webhooks", "list"), "ENDPOINT STATE URL EVENTS", id+" enabled https://example.com/hooks payment.completed, refund.completed")

	if n := s.count(t, `WITH u AS (UPDATE webhook_endpoints SET state = 'disabled', disabled_reason = 'gone' RETURNING 1) SELECT count(*) FROM u`); n != 1 {
		t.Fatal(n)
	}
	wantLines(t, must(t, s.env, "webhooks", "get", id), "state disabled: gone", "disabled "+at)
	wantLines(t, must(t, s.env, "webhooks", "enable", id, "--key", "e"), "state enabled", "key e")

	var rotated webhooks.Secret
	mustJSON(t, &rotated, s.env, "webhooks", "rotate", id, "--key", "r")
	if rotated.Secret == made.Secret || rotated.PreviousUntil == nil {
		t.Errorf("%+v", rotated)
	}

	event := s.event(t)
	wantLines(t, must(t, s.env, "webhooks", "deliveries", id), "EVENT TYPE STATE TRIES SUBJECT LAST ERROR", event+" payment.completed pending 0 p")
	if out := must(t, s.env, "webhooks", "deliveries", id, "--after", event); out != "there are no deliveries\n" {
		t.Error(out)
	}
	wantLines(t, must(t, s.env, "webhooks", "redeliver", id, "--event", event, "--key", "d"), "event "+event, "state pending", "next try "+at)

	wantLines(t, must(t, s.env, "webhooks", "delete", id), "state deleted")
	wantLines(t, must(t, s.env, "webhooks", "delete", id), "state deleted")
	if _, stderr, code := oncepay(t, s.env, "webhooks", "get", id); code != exitRefused || !strings.Contains(stderr, "404 not-found") {
		t.Errorf("%d %s", code, stderr)
	}
	if _, stderr, code := oncepay(t, s.env, "webhooks", "create", "--url", "http://10.0.0.1/", "--key", "x"); code == exitDone || !strings.Contains(stderr, "url must begin with https://") {
		t.Errorf("%d %s", code, stderr)
	}
	if _, stderr, code := oncepay(t, s.env, "webhooks", "create", "--url", "https://example.com", "--types", "payment.paid"); code != exitFailed || !strings.Contains(stderr, "it may have payment.processing") {
		t.Errorf("%d %s", code, stderr)
	}
}

// event writes one for the shop's endpoints and returns its id.
func (s *shop) event(t *testing.T) string {
	t.Helper()
	db := s.db.Pool(t, "")
	e := webhooks.Event{ID: uuid.Must(uuid.NewV7()), Type: "payment.completed", Source: "/oncepay", Subject: "p", Time: time.Now(), Payload: []byte("{}")}
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		if err := tx.QueryRow(t.Context(), `SELECT id FROM tenants`).Scan(&e.Tenant); err != nil {
			return err
		}
		return webhooks.Write(t.Context(), tx, []webhooks.Event{e})
	})
	if err != nil {
		t.Fatal(err)
	}
	return e.ID.String()
}
