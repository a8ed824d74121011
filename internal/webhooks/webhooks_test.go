package webhooks_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/internal/webhooks"
)

func TestAnEventArrivesAsDescribed(t *testing.T) {
	t.Parallel()
	b, r := newBench(t), receive(t, ok)
	endpoint := b.endpoint(t, r.URL)
	payment := uuid.New()
	e := b.event(payment, 3)
	e.Payload = []byte(`{"id":"` + payment.String() + `","description":"<é>"}`)
	b.write(t, e)
	b.sending(t)
	b.sent(t)

	got := r.has(t, 1)[0]
	verifier, err := standardwebhooks.NewWebhook(endpoint.Secret)
	if err != nil {
		t.Fatal(err)
	}
	if err := verifier.Verify(got.text, got.header); err != nil {
		t.Error(err)
	}
	want := fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/oncepay","type":"payment.completed","subject":%q,"time":%[3]q,"timestamp":%[3]q,"sequence":"3","data":%[4]s}`,
		e.ID, payment, e.Time.UTC().Format(time.RFC3339Nano), e.Payload)
	if diff := cmp.Diff(want, string(got.text)); diff != "" {
		t.Errorf("body (-want +got):\n%s", diff)
	}
	if got.header.Get("webhook-id") != e.ID.String() || got.header.Get("Content-Type") != "application/json" {
		t.Errorf("headers %v", got.header)
	}
	d := b.deliveries(t, endpoint.ID)
	if len(d) != 1 || d[0].State != webhooks.Delivered || d[0].Tries != 1 || *d[0].LastStatus != 200 || d[0].EndedAt == nil {
		t.Errorf("%+v", d)
	}
}

// TestOnlyWhatIsWanted: the types of the endpoint, its tenant, and what happened since it was created.
func TestOnlyWhatIsWanted(t *testing.T) {
	t.Parallel()
	b, other := newBench(t), uuid.New()
	early := b.event(uuid.New(), 1)
	all := b.endpoint(t, "https://example.com/all")
	some := b.endpoint(t, "https://example.com/some", "payment.completed", "refund.completed")
	gone := b.endpoint(t, "https://example.com/gone")
	inTx(t, b.api, func(ctx context.Context, tx pgx.Tx) (webhooks.Endpoint, error) {
		return webhooks.Delete(ctx, tx, b.tenant, gone.ID)
	})

	completed, declined, foreign := b.event(uuid.New(), 1), b.event(uuid.New(), 1), b.event(uuid.New(), 1)
	declined.Type, foreign.Tenant = "payment.declined", other
	b.write(t, early, completed, declined, foreign)
	b.write(t, completed) // as a consumer of another name does
	for id, want := range map[uuid.UUID][]uuid.UUID{all.ID: {completed.ID, declined.ID}, some.ID: {completed.ID}} {
		var got []uuid.UUID
		for _, d := range b.deliveries(t, id) {
			got = append(got, d.ID)
		}
		slices.SortFunc(want, func(a, b uuid.UUID) int { return -strings.Compare(a.String(), b.String()) })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if n := b.count(t, `SELECT count(*) FROM webhook_deliveries`); n != 3 {
		t.Errorf("%d deliveries", n)
	}

	bad := b.event(uuid.New(), 1)
	bad.Payload = []byte("{")
	_, err := try(t, b.worker, func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
		return struct{}{}, webhooks.Write(ctx, tx, []webhooks.Event{bad})
	})
	if !errors.Is(err, webhooks.ErrMalformed) {
		t.Errorf("a payload that is no JSON: %v", err)
	}
}

func TestTenantsDoNotSeeEachOther(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	e := b.endpoint(t, "https://example.com/")
	event := b.event(uuid.New(), 1)
	b.write(t, event)
	for name, do := range map[string]func(context.Context, pgx.Tx) (any, error){
		"find":   func(ctx context.Context, tx pgx.Tx) (any, error) { return webhooks.Find(ctx, tx, uuid.New(), e.ID) },
		"delete": func(ctx context.Context, tx pgx.Tx) (any, error) { return webhooks.Delete(ctx, tx, uuid.New(), e.ID) },
		"rotate": func(ctx context.Context, tx pgx.Tx) (any, error) { return webhooks.Rotate(ctx, tx, uuid.New(), e.ID) },
		"enable": func(ctx context.Context, tx pgx.Tx) (any, error) { return webhooks.Enable(ctx, tx, uuid.New(), e.ID) },
		"list": func(ctx context.Context, tx pgx.Tx) (any, error) {
			return webhooks.ListDeliveries(ctx, tx, uuid.New(), e.ID, uuid.Max, 9)
		},
		"again": func(ctx context.Context, tx pgx.Tx) (any, error) {
			return webhooks.Redeliver(ctx, tx, uuid.New(), e.ID, event.ID)
		},
		"another": func(ctx context.Context, tx pgx.Tx) (any, error) {
			return webhooks.Redeliver(ctx, tx, b.tenant, e.ID, uuid.New())
		},
	} {
		if _, err := try(t, b.api, do); !errors.Is(err, webhooks.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := b.count(t, `SELECT count(*) FROM webhook_endpoints WHERE state = 'enabled' AND previous_secret IS NULL`); n != 1 {
		t.Errorf("%d endpoints as they were", n)
	}
}

func TestFailuresAreTriedAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := receive(t, func(n int, _ received) int { return []int{500, 302, 404, 199 + 300, 204}[n] })
	e := b.endpoint(t, r.URL)
	b.write(t, b.event(uuid.New(), 1))
	b.sending(t)
	b.sent(t)
	calls := r.has(t, 5)
	for _, c := range calls {
		if string(c.text) != string(calls[0].text) || c.header.Get("webhook-id") != calls[0].header.Get("webhook-id") {
			t.Errorf("a try differs: %s %s", c.header.Get("webhook-id"), c.text)
		}
	}
	if d := b.deliveries(t, e.ID)[0]; d.Tries != 5 || d.State != webhooks.Delivered || d.LastError != "" {
		t.Errorf("%+v", d)
	}
	if got := b.find(t, e.ID); got.FailingSince != nil || got.State != webhooks.Enabled {
		t.Errorf("%+v", got)
	}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	b, r := newBench(t), receive(t, ok)
	first := b.endpoint(t, r.URL)
	rotate := func() webhooks.Secret {
		return inTx(t, b.api, func(ctx context.Context, tx pgx.Tx) (webhooks.Secret, error) {
			return webhooks.Rotate(ctx, tx, b.tenant, first.ID)
		})
	}
	second := rotate()
	if d := time.Until(*second.PreviousUntil); d < webhooks.SecretOverlap-time.Minute || d > webhooks.SecretOverlap+time.Minute {
		t.Errorf("the old secret is valid for %s", d)
	}
	b.sending(t)
	send := func(n int, valid map[string]bool) {
		t.Helper()
		b.write(t, b.event(uuid.New(), 1))
		got := r.has(t, n)[n-1]
		for secret, want := range valid {
			verifier, err := standardwebhooks.NewWebhook(secret)
			if err != nil {
				t.Fatal(err)
			}
			if err := verifier.Verify(got.text, got.header); (err == nil) != want {
				t.Errorf("call %d: %v, want valid: %t", n, err, want)
			}
		}
	}
	send(1, map[string]bool{first.Secret: true, second.Secret: true})
	third := rotate()
	send(2, map[string]bool{first.Secret: false, second.Secret: true, third.Secret: true})
	b.exec(t, `UPDATE webhook_endpoints SET previous_until = now()`)
	send(3, map[string]bool{second.Secret: false, third.Secret: true})
}

// disabledEvents are those in the outbox.
func (b *bench) disabledEvents(t *testing.T) int {
	t.Helper()
	return b.count(t, `SELECT count(*) FROM outbox_events WHERE event_type = 'webhook_endpoint.disabled' AND aggregate_type = 'webhook-endpoints'
		AND headers->>'ce_tenantid' = $1`, b.tenant.String())
}

// TestGoneIsDisabled, and what is pending is sent in order when it is enabled again, with what came meanwhile.
func TestGoneIsDisabled(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var gone atomic.Bool
	gone.Store(true)
	r := receive(t, func(int, received) int {
		if gone.Load() {
			return http.StatusGone
		}
		return http.StatusOK
	})
	e := b.endpoint(t, r.URL)
	payment := uuid.New()
	b.write(t, b.event(payment, 1), b.event(payment, 2))
	b.sending(t)
	testenv.Eventually(t, soon, func() error {
		if got := b.find(t, e.ID); got.State != webhooks.Disabled || got.DisabledReason != webhooks.ReasonGone || got.DisabledAt == nil {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	if n := b.disabledEvents(t); n != 1 {
		t.Errorf("%d events", n)
	}
	b.write(t, b.event(payment, 3)) // while it is disabled
	before := len(r.calls())
	if before != 1 {
		t.Errorf("%d calls", before)
	}

	gone.Store(false)
	b.exec(t, `UPDATE webhook_deliveries SET next_try_at = now() + interval '1 hour'`)
	b.enable(t, e.ID)
	if n, err := webhooks.Resume(t.Context(), b.worker); n != 3 || err != nil {
		t.Errorf("%d resumed, %v", n, err)
	}
	b.sent(t)
	var order []string
	for _, c := range r.calls()[before:] {
		order = append(order, c.body.Sequence)
	}
	if diff := cmp.Diff([]string{"1", "2", "3"}, order); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n := b.count(t, `SELECT count(*) FROM webhook_endpoints WHERE resuming`); n != 0 {
		t.Error("it is resuming for ever")
	}
}

// TestThreeDaysOfFailures: an endpoint that takes nothing is disabled. A delivery that fails while others are taken is given up, and
// those behind it go on.
func TestThreeDaysOfFailures(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	payment := uuid.New()
	bad := b.event(payment, 1)
	r := receive(t, func(_ int, got received) int {
		if got.body.ID == bad.ID.String() {
			return http.StatusInternalServerError
		}
		return http.StatusOK
	})
	down := receive(t, func(int, received) int { return http.StatusInternalServerError })
	picky, dead := b.endpoint(t, r.URL), b.endpoint(t, down.URL)
	bad.Time = time.Now() // since they were created
	b.write(t, bad, b.event(payment, 2))
	b.sending(t)
	testenv.Eventually(t, soon, func() error {
		if n := b.count(t, `SELECT count(*) FROM webhook_deliveries WHERE tries > 1`); n < 2 {
			return fmt.Errorf("%d tried", n)
		}
		return nil
	})
	for _, id := range []uuid.UUID{picky.ID, dead.ID} { // not yet
		if got := b.find(t, id); got.State != webhooks.Enabled || got.FailingSince == nil {
			t.Errorf("%+v", got)
		}
	}

	const past = `now() - interval '73 hours'`
	b.exec(t, `UPDATE webhook_endpoints SET state_since = `+past)
	b.exec(t, `UPDATE webhook_endpoints SET failing_since = NULL WHERE id = $1`, picky.ID)
	b.exec(t, `UPDATE webhook_endpoints SET failing_since = `+past+` WHERE id = $1`, dead.ID)
	b.exec(t, `UPDATE webhook_deliveries SET first_tried_at = `+past+` WHERE first_tried_at IS NOT NULL`)
	testenv.Eventually(t, soon, func() error {
		got := b.find(t, dead.ID)
		states := map[webhooks.DeliveryState]int{}
		for _, d := range b.deliveries(t, picky.ID) {
			states[d.State]++
		}
		if got.State != webhooks.Disabled || got.DisabledReason != webhooks.ReasonFailing || states[webhooks.Delivered] != 1 || states[webhooks.Failed] != 1 {
			return fmt.Errorf("%+v %v", got, states)
		}
		return nil
	})
	if got := b.find(t, picky.ID); got.State != webhooks.Enabled {
		t.Errorf("%+v", got)
	}
	for _, d := range b.deliveries(t, dead.ID) {
		if d.State != webhooks.Pending {
			t.Errorf("%+v", d)
		}
	}
	if n := b.disabledEvents(t); n != 1 {
		t.Errorf("%d events", n)
	}
}

// TestRedelivery sends what was delivered again, under the same id.
func TestRedelivery(t *testing.T) {
	t.Parallel()
	b, r := newBench(t), receive(t, ok)
	e := b.endpoint(t, r.URL)
	event := b.event(uuid.New(), 1)
	b.write(t, event)
	b.sending(t)
	b.sent(t)
	d := inTx(t, b.api, func(ctx context.Context, tx pgx.Tx) (webhooks.Delivery, error) {
		return webhooks.Redeliver(ctx, tx, b.tenant, e.ID, event.ID)
	})
	if d.State != webhooks.Pending || d.Tries != 0 || d.NextTryAt == nil {
		t.Errorf("%+v", d)
	}
	calls := r.has(t, 2)
	if calls[0].header.Get("webhook-id") != calls[1].header.Get("webhook-id") {
		t.Error("it has another id")
	}
	b.sent(t)
}

// TestStaleResultIsRefused: a sender that was stalled for longer than its lease records nothing.
func TestStaleResultIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	release := make(chan struct{})
	var calls atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 1 {
			<-release
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(s.Close)
	e := b.endpoint(t, s.URL)
	b.write(t, b.event(uuid.New(), 1))
	stop := b.sending(t)
	testenv.Eventually(t, soon, func() error {
		if calls.Load() == 0 {
			return errors.New("it was not called")
		}
		return nil
	})
	b.exec(t, `UPDATE webhook_deliveries SET next_try_at = now()`) // the lease ends
	b.sent(t)
	close(release)
	stop() // and record
	if d := b.deliveries(t, e.ID)[0]; d.State != webhooks.Delivered || d.Tries != 1 || *d.LastStatus != 200 {
		t.Errorf("%+v", d)
	}
}

// TestForbiddenAddressIsAFailure like any other: the operator may allow it later.
func TestForbiddenAddressIsAFailure(t *testing.T) {
	t.Parallel()
	b, r := newBench(t), receive(t, ok)
	e := b.endpoint(t, r.URL)
	b.write(t, b.event(uuid.New(), 1))
	b.run(t, &webhooks.Sender{Allow: []netip.Prefix{}})
	testenv.Eventually(t, soon, func() error {
		if d := b.deliveries(t, e.ID)[0]; d.Tries == 0 || d.LastError != "the address is not allowed" || d.State != webhooks.Pending {
			return fmt.Errorf("%+v", d)
		}
		return nil
	})
	if n := len(r.calls()); n != 0 {
		t.Errorf("%d calls", n)
	}
}

func TestTooManyEndpoints(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for range webhooks.MaxEndpoints {
		b.endpoint(t, "https://example.com/")
	}
	_, err := try(t, b.api, func(ctx context.Context, tx pgx.Tx) (webhooks.Secret, error) {
		return webhooks.Create(ctx, tx, b.tenant, "https://example.com/", nil)
	})
	if !errors.Is(err, webhooks.ErrTooMany) {
		t.Errorf("one too many: %v", err)
	}
}

func TestOldDeliveriesAreDeleted(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	enabled, disabled, deleted := b.endpoint(t, "https://example.com/"), b.endpoint(t, "https://example.com/"), b.endpoint(t, "https://example.com/")
	b.write(t, b.event(uuid.New(), 1))
	b.exec(t, `UPDATE webhook_endpoints SET state = 'disabled', disabled_reason = 'gone' WHERE id = $1`, disabled.ID)
	inTx(t, b.api, func(ctx context.Context, tx pgx.Tx) (webhooks.Endpoint, error) {
		return webhooks.Delete(ctx, tx, b.tenant, deleted.ID)
	})
	clear := func(want int) {
		t.Helper()
		if n, err := webhooks.Clear(t.Context(), b.worker); n != want || err != nil {
			t.Errorf("%d deleted, want %d: %v", n, want, err)
		}
	}
	clear(1) // of the deleted endpoint
	b.exec(t, `UPDATE webhook_deliveries SET created_at = now() - interval '31 days'`)
	clear(2) // pending at the enabled one as well: otherwise it could keep all from being deleted
	if oldest, n, err := webhooks.Backlog(t.Context(), b.worker); oldest != 0 || n != 1 || err != nil {
		t.Errorf("backlog %s, %d disabled, %v", oldest, n, err)
	}
	b.exec(t, `UPDATE webhook_endpoints SET state_since = now() - interval '25 hours'`)
	clear(0)
	if n := b.count(t, `SELECT count(*) FROM webhook_endpoints WHERE id <> $1`, enabled.ID); n != 1 {
		t.Errorf("%d other endpoints", n)
	}
}

// TestOneEndpointCannotStopTheCleaning: it is enabled and so far behind that the oldest deliveries of all are its own, and pending.
func TestOneEndpointCannotStopTheCleaning(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	behind, other := b.endpoint(t, "https://example.com/"), b.endpoint(t, "https://example.com/")
	const insert = `INSERT INTO webhook_deliveries (endpoint_id, tenant_id, event_id, event_type, subject, body, state, created_at, ended_at)
		SELECT $1, $2, gen_random_uuid(), 'payment.completed', i::text, '{}', $3, now() - interval '31 days', $4 FROM generate_series(1, $5) i`
	b.exec(t, insert, behind.ID, b.tenant, "pending", nil, 2000)
	b.exec(t, insert, other.ID, b.tenant, "delivered", time.Now(), 1)
	for range 2 {
		if _, err := webhooks.Clear(t.Context(), b.worker); err != nil {
			t.Fatal(err)
		}
	}
	if n := b.count(t, `SELECT count(*) FROM webhook_deliveries WHERE endpoint_id = $1`, other.ID); n != 0 {
		t.Errorf("%d deliveries of another endpoint are kept for ever", n)
	}
}

// TestFailureAtAnOldEndpoint: three days count from the first try of the delivery, not from the day the endpoint was created.
func TestFailureAtAnOldEndpoint(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := receive(t, func(n int, _ received) int { return []int{500, 200}[min(n, 1)] })
	e := b.endpoint(t, r.URL)
	b.exec(t, `UPDATE webhook_endpoints SET state_since = now() - interval '30 days'`)
	b.write(t, b.event(uuid.New(), 1))
	b.sending(t)
	b.sent(t)
	if d := b.deliveries(t, e.ID)[0]; d.State != webhooks.Delivered || d.Tries != 2 {
		t.Errorf("%+v", d)
	}
}

// TestNoCallsWithoutRecords: while results cannot be recorded, calls come to an end. Otherwise they pile up in memory, and the receivers
// get them again and again.
func TestNoCallsWithoutRecords(t *testing.T) {
	t.Parallel()
	b, r := newBench(t), receive(t, func(int, received) int { return http.StatusInternalServerError })
	e := b.endpoint(t, r.URL)
	const events = 1500
	b.fill(t, events)

	// The first failure is noted in the endpoint's row.
	tx, err := b.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	if _, err := tx.Exec(t.Context(), `SELECT FROM webhook_endpoints WHERE id = $1 FOR UPDATE`, e.ID); err != nil {
		t.Fatal(err)
	}
	b.exec(t, `UPDATE webhook_deliveries SET subject = id::text`) // none waits for another
	b.sending(t)

	calls, since := 0, time.Now()
	testenv.Eventually(t, soon, func() error {
		if n := len(r.calls()); n != calls || n < 100 {
			calls, since = n, time.Now()
		}
		if time.Since(since) < time.Second {
			return fmt.Errorf("%d calls, and more to come", calls)
		}
		return nil
	})
	if calls > events-200 {
		t.Errorf("%d calls, of which none is recorded", calls)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestOnePaymentWithManyEvents: a payment may have any number of refunds. While its events wait at endpoints that do not take them, the
// claim, which is everybody's, stays short.
func TestOnePaymentWithManyEvents(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for range webhooks.MaxEndpoints {
		b.endpoint(t, "http://127.0.0.1:1/")
	}
	b.exec(t, `INSERT INTO webhook_deliveries (endpoint_id, tenant_id, event_id, event_type, subject, body, next_try_at)
		SELECT e.id, e.tenant_id, gen_random_uuid(), 'refund.completed', 'one', '{}', now() - i * interval '1 ms'
		FROM webhook_endpoints e, generate_series(1, 10000) i`)
	other, r := newBench(t), receive(t, ok)
	other.owner, other.api, other.worker = b.owner, b.api, b.worker
	other.endpoint(t, r.URL)
	other.write(t, other.event(uuid.New(), 1))

	b.run(t, &webhooks.Sender{})
	r.has(t, 1)
}
