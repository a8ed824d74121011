package fakepsp_test

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/oncepay/oncepay/internal/fakepsp"
	"github.com/oncepay/oncepay/internal/testenv"
)

func TestCharge(t *testing.T) {
	t.Parallel()
	p := withFaults(t, fakepsp.Faults{})

	first := charge(p, "k")
	got := charged(t, first)
	want := fakepsp.Charge{
		ID: got.ID, Object: "charge", Amount: 2500, Currency: "usd", Status: "succeeded",
		PaymentMethod: "tok_visa", Metadata: map[string]string{"operation_id": "operation of k"},
		Created: got.Created,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if age := time.Since(time.Unix(got.Created, 0)); !strings.HasPrefix(got.ID, "ch_") || age > soon {
		t.Errorf("id %s, %s old", got.ID, age)
	}

	if data := found(t, p, "k"); len(data) != 1 || data[0].ID != got.ID {
		t.Errorf("by its key: %v", data)
	}
	if data := found(t, p, "other"); len(data) != 0 {
		t.Errorf("by another key: %v", data)
	}
}

func TestReplayIsTheFirstAnswer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := open(t, dir, fakepsp.Options{})

	paid, denied := charge(p, "paid"), chargeToken(p, "denied", "tok_declined")
	back := refund(p, "back", charged(t, paid).ID, 1000) // changes the charge, not its answer
	if denied.status != http.StatusPaymentRequired || back.status != http.StatusCreated {
		t.Fatal(denied, back)
	}

	replays := func(p *fakepsp.PSP) {
		t.Helper()
		for first, again := range map[*answer]answer{
			&paid: charge(p, "paid"), &denied: chargeToken(p, "denied", "tok_declined"),
			&back: refund(p, "back", charged(t, paid).ID, 1000),
		} {
			if again.status != first.status || again.body != first.body ||
				again.header.Get("Idempotent-Replayed") != "true" {
				t.Errorf("first %s\nthen %s %v", first, again, again.header)
			}
		}
	}
	replays(p)

	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p = open(t, dir, fakepsp.Options{})
	replays(p)

	totals := p.Totals()
	if totals.ChargesSucceeded != 1 || totals.ChargesDeclined != 1 || totals.RefundsSucceeded != 1 {
		t.Errorf("%+v", totals)
	}
	if data := found(t, p, "paid"); len(data) != 1 || data[0].Refunded != 1000 {
		t.Errorf("after the refund: %v", data)
	}
}

func TestDeclinedChargeIsInTheBooks(t *testing.T) {
	t.Parallel()
	p := withFaults(t, fakepsp.Faults{})

	body := read[struct {
		Error struct {
			Type, Code, Message string
			Object              fakepsp.Charge
		}
	}](t, chargeToken(p, "k", "tok_declined").body).Error
	if body.Type != "card_error" || body.Code != "card_declined" || body.Object.Status != "declined" {
		t.Errorf("%+v", body)
	}
	if diff := cmp.Diff([]fakepsp.Charge{body.Object}, found(t, p, "k")); diff != "" {
		t.Error(diff)
	}
}

func TestRefusalsLeaveNothing(t *testing.T) {
	t.Parallel()
	p := withFaults(t, fakepsp.Faults{})
	paid := charged(t, charge(p, "paid")).ID
	chargeToken(p, "denied", "tok_declined")
	denied := found(t, p, "denied")[0].ID
	before := p.Books()

	good, back := order(1, "tok_visa", "o"), func(charge string, amount int) string {
		return fmt.Sprintf(`{"charge":%q,"amount":%d}`, charge, amount)
	}
	bad := order(1, "tok_invalid", "o")
	loud := strings.Replace(good, "usd", "USD", 1)

	for name, c := range map[string]struct {
		path, key, body string
		status          int
		code            string
	}{
		"no key":           {"charges", "", good, 400, "idempotency_key_invalid"},
		"long key":         {"charges", strings.Repeat("k", 256), good, 400, "idempotency_key_invalid"},
		"no JSON":          {"charges", "k", "amount=1", 400, "body_invalid"},
		"more than one":    {"charges", "k", good + good, 400, "body_invalid"},
		"unknown field":    {"charges", "k", `{"amuont":1}`, 400, "body_invalid"},
		"too large":        {"charges", "k", strings.Repeat(" ", 1<<17) + good, 400, "body_invalid"},
		"nothing":          {"charges", "k", order(0, "tok_visa", "o"), 400, "amount_invalid"},
		"no token":         {"charges", "k", order(1, "4242", "o"), 400, "payment_method_invalid"},
		"invalid token":    {"charges", "k", bad, 400, "payment_method_invalid"},
		"currency":         {"charges", "k", loud, 400, "currency_invalid"},
		"another request":  {"charges", "paid", good, 422, "key_reused"},
		"another path":     {"refunds", "paid", back(paid, 1), 422, "key_reused"},
		"no charge":        {"refunds", "k", back("", 1), 400, "parameter_missing"},
		"refund nothing":   {"refunds", "k", back(paid, 0), 400, "amount_invalid"},
		"unknown charge":   {"refunds", "k", back("ch_none", 1), 404, "resource_missing"},
		"declined charge":  {"refunds", "k", back(denied, 1), 400, "charge_not_refundable"},
		"more than charge": {"refunds", "k", back(paid, 2501), 400, "amount_too_large"},
	} {
		// Twice: what is refused is not remembered.
		for range 2 {
			a := call(p, "POST", "/v1/"+c.path, c.key, c.body)
			if a.status != c.status || code(t, a) != c.code {
				t.Errorf("%s: %s, want %d %s", name, a, c.status, c.code)
			}
		}
	}
	if diff := cmp.Diff(before, p.Books()); diff != "" {
		t.Error(diff)
	}

	// The key of what was refused is free.
	charged(t, charge(p, "k"))
}

func TestStrangersAreRefused(t *testing.T) {
	t.Parallel()
	p := withFaults(t, fakepsp.Faults{})

	for _, path := range []string{"/v1/charges", "/v1/refunds"} {
		for _, method := range []string{"GET", "POST"} {
			r, err := http.NewRequest(method, path, strings.NewReader(order(1, "tok_visa", "o")))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer psp_tes")
			r.Header.Set("Idempotency-Key", "k")
			if a := serve(p, r); a.status != 401 || code(t, a) != "api_key_invalid" {
				t.Errorf("%s %s: %s", method, path, a)
			}
		}
	}
}

func TestRefundsTogetherStayBelowTheCharge(t *testing.T) {
	t.Parallel()
	p := withFaults(t, fakepsp.Faults{})
	id := charged(t, charge(p, "paid")).ID

	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() { refund(p, fmt.Sprint("refund ", i), id, 400) })
	}
	all.Wait()

	totals := p.Totals()
	if totals.RefundsSucceeded != 6 || totals.Refunded["usd"] != 2400 {
		t.Errorf("%+v", totals)
	}
	if c := found(t, p, "paid")[0]; c.Refunded != 2400 {
		t.Errorf("%+v", c)
	}
	if a := refund(p, "rest", id, 100); a.status != http.StatusCreated {
		t.Errorf("the rest: %s", a)
	}
}

func TestRefundDeclined(t *testing.T) {
	t.Parallel()
	p := withFaults(t, fakepsp.Faults{})
	id := charged(t, chargeToken(p, "paid", "tok_refund_declined")).ID

	if a := refund(p, "back", id, 2500); a.status != 402 || code(t, a) != "card_declined" {
		t.Error(a)
	}
	if c := found(t, p, "paid")[0]; c.Refunded != 0 || p.Totals().RefundsDeclined != 1 {
		t.Errorf("%+v, %+v", c, p.Totals())
	}
}

// An empty list would say that nothing was executed, while it is about to be.
func TestKeyInUseIsNotLookedUp(t *testing.T) {
	t.Parallel()
	p := withFaults(t, fakepsp.Faults{Slow: 1, SlowFor: fakepsp.Duration(time.Hour)}) // half of them before they execute

	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() { charge(p, strconv.Itoa(i)) })
	}
	testenv.Eventually(t, soon, func() error {
		for i := range 16 {
			if a := call(p, "GET", "/v1/charges?key="+strconv.Itoa(i), "", ""); a.status == 409 && code(t, a) == "key_in_use" {
				return nil
			}
		}
		return errors.New("no key is in use")
	})
	p.Drain()
	all.Wait()
}

func TestOneKeyFromFiftyClients(t *testing.T) {
	t.Parallel()
	p := withFaults(t, fakepsp.Faults{Latency: fakepsp.Duration(20 * time.Millisecond)})

	answers := make([]answer, 50)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			for answers[i] = charge(p, "k"); answers[i].status == 409; answers[i] = charge(p, "k") {
				if c := code(t, answers[i]); c != "key_in_use" {
					t.Errorf("409 %s", c)
					return
				}
			}
		})
	}
	all.Wait()

	for _, a := range answers {
		if a.status != 201 || a.body != answers[0].body {
			t.Errorf("%s and %s", a, answers[0])
		}
	}
	if got := p.Totals().ChargesSucceeded; got != 1 {
		t.Errorf("%d charges", got)
	}
}

func TestListsHaveEverythingOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := open(t, dir, fakepsp.Options{})

	var all sync.WaitGroup
	for i := range 25 {
		all.Go(func() {
			id := charged(t, charge(p, fmt.Sprint("k", i))).ID
			refund(p, fmt.Sprint("r", i), id, 1)
		})
	}
	all.Wait()

	charges, refunds := pages[fakepsp.Charge](t, p, "charges"), pages[fakepsp.Refund](t, p, "refunds")
	var booked []fakepsp.Charge
	for _, c := range p.Books().Charges {
		booked = append(booked, c.Charge)
	}
	if len(refunds) != 25 {
		t.Errorf("%d refunds", len(refunds))
	}
	if diff := cmp.Diff(booked, charges); diff != "" || len(charges) != 25 {
		t.Error(diff)
	}

	// A reader may continue after a restart where it was.
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p = open(t, dir, fakepsp.Options{})
	if diff := cmp.Diff(charges, pages[fakepsp.Charge](t, p, "charges")); diff != "" {
		t.Error(diff)
	}

	for _, query := range []string{"limit=0", "limit=1001", "limit=x", "starting_after=ch_none"} {
		if a := call(p, "GET", "/v1/charges?"+query, "", ""); a.status != 400 {
			t.Errorf("%s: %s", query, a)
		}
	}
}

// pages reads a list from its beginning to its end.
func pages[T fakepsp.Charge | fakepsp.Refund](t *testing.T, p *fakepsp.PSP, of string) (all []T) {
	t.Helper()
	path := "/v1/" + of + "?limit=10"
	for {
		l := read[list[T]](t, call(p, "GET", path, "", "").body)
		all = append(all, l.Data...)
		if l.Object != "list" || l.HasMore != (len(l.Data) == 10) {
			t.Fatalf("page of %d: %+v", len(l.Data), l)
		}
		if !l.HasMore {
			return all
		}
		path = "/v1/" + of + "?limit=10&starting_after=" + id(l.Data[9])
	}
}

func id(v any) string {
	if c, is := v.(fakepsp.Charge); is {
		return c.ID
	}
	return v.(fakepsp.Refund).ID
}
