package psp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/psp"
)

const apiKey = "sk_test_do_not_log"

func client(t *testing.T, h http.HandlerFunc) *psp.Client {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return psp.NewClient(server.URL+"/", apiKey, 4)
}

// TestRequests: what goes over the wire, the same for every try.
func TestRequests(t *testing.T) {
	t.Parallel()
	var got []string
	c := client(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = append(got, fmt.Sprintf("%s %s %s %s %s %s", r.Method, r.URL, r.Header.Get("Authorization"), r.Header.Get("Idempotency-Key"), r.Header.Get("Content-Type"), body))
	})
	a, b := charge(), refund()
	for range 2 {
		c.Charge(t.Context(), a)
	}
	c.Refund(t.Context(), b)
	c.Find(t.Context(), a)
	c.Find(t.Context(), b)
	post := fmt.Sprintf(`POST /v1/charges Bearer %s %s application/json {"amount":2500,"currency":"usd","metadata":{"operation_id":"%s","payment_id":"%s"},"payment_method":"tok_visa"}`, apiKey, a.Key(), a.ID, a.PaymentID)
	want := []string{
		post, post,
		fmt.Sprintf(`POST /v1/refunds Bearer %s %s application/json {"amount":2500,"charge":"ch_1","metadata":{"operation_id":"%s","payment_id":"%s","refund_id":"%s"}}`, apiKey, b.Key(), b.ID, b.PaymentID, b.RefundID),
		fmt.Sprintf("GET /v1/charges?key=%s Bearer %s   ", a.Key(), apiKey),
		fmt.Sprintf("GET /v1/refunds?key=%s Bearer %s   ", b.Key(), apiKey),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestBrokenCalls: without a whole answer nothing is known, and a request is never sent twice by one call.
func TestBrokenCalls(t *testing.T) {
	t.Parallel()
	hangUp := func(w http.ResponseWriter) net.Conn {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		return conn
	}
	for name, c := range map[string]struct {
		serve func(http.ResponseWriter, *http.Request)
		want  psp.Outcome
	}{
		"no answer":       {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, psp.Timeout},
		"connection lost": {func(w http.ResponseWriter, _ *http.Request) { _ = hangUp(w).Close() }, psp.Unreachable},
		"reset": {func(w http.ResponseWriter, _ *http.Request) {
			conn := hangUp(w).(*net.TCPConn)
			_ = conn.SetLinger(0)
			_ = conn.Close()
		}, psp.Unreachable},
		"half an answer": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, `{"id":"ch_1"`)
		}, psp.Unreachable},
		"not HTTP": {func(w http.ResponseWriter, _ *http.Request) {
			conn := hangUp(w)
			fmt.Fprint(conn, "220 smtp ready\r\n\r\n")
			_ = conn.Close()
		}, psp.Unreachable},
		"too long": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, strings.Repeat(" ", 65<<10), `{}`)
		}, psp.Unreadable},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/v1/elsewhere", http.StatusTemporaryRedirect)
		}, psp.Unreadable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var posts atomic.Int64
			client := client(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if r.Method == http.MethodGet { // makes a connection that is used again
					fmt.Fprint(w, `{"object":"list","data":[]}`)
					return
				}
				posts.Add(1)
				c.serve(w, r)
			})
			op := charge()
			if a := client.Find(t.Context(), op); a.Outcome != psp.Refused {
				t.Fatalf("find: %+v", a)
			}
			patience := time.Minute
			if c.want == psp.Timeout {
				patience = 5 * time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			a := client.Charge(ctx, op)
			if a.Outcome != c.want || a.Detail == "" || strings.Contains(a.Detail, apiKey) || posts.Load() != 1 {
				t.Errorf("%+v after %d requests, want %s after one", a, posts.Load(), c.want)
			}
		})
	}
	t.Run("nothing listens", func(t *testing.T) {
		t.Parallel()
		server := httptest.NewServer(http.NotFoundHandler())
		server.Close()
		if a := psp.NewClient(server.URL, apiKey, 4).Charge(t.Context(), charge()); a.Outcome != psp.Unreachable {
			t.Errorf("%+v", a)
		}
	})
}

func TestListGoesThroughThePages(t *testing.T) {
	t.Parallel()
	page := func(more bool, ids ...string) string {
		var data []string
		for _, id := range ids {
			data = append(data, fmt.Sprintf(`{"id":%q,"object":"charge","amount":5,"currency":"eur","status":"declined","metadata":{"operation_id":"op_%s"},"created":1}`, id, id))
		}
		return fmt.Sprintf(`{"object":"list","data":[%s],"has_more":%t}`, strings.Join(data, ","), more)
	}
	answers := map[string]string{
		"limit=100":                      page(true, "ch_1", "ch_2"),
		"limit=100&starting_after=ch_2":  page(false, "ch_3"),
		"limit=100&starting_after=empty": page(true),
		"limit=100&starting_after=long":  strings.Repeat(" ", 2<<20),
	}
	c := client(t, func(w http.ResponseWriter, r *http.Request) {
		if answers[r.URL.RawQuery] == "" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		fmt.Fprint(w, answers[r.URL.RawQuery])
	})
	first, more, err := c.List(t.Context(), payments.Charge, "")
	if err != nil || !more || len(first) != 2 {
		t.Fatalf("%v, more: %t, %v", first, more, err)
	}
	second, more, err := c.List(t.Context(), payments.Charge, first[1].Reference)
	want := []psp.Entry{{Reference: "ch_3", OperationID: "op_ch_3", AmountMinor: 5, Currency: "EUR", Declined: true}}
	if diff := cmp.Diff(want, second); err != nil || more || diff != "" {
		t.Errorf("more: %t, %v, -want +got:\n%s", more, err, diff)
	}
	for _, after := range []string{"empty", "long", "ch_9"} {
		if _, _, err := c.List(t.Context(), payments.Charge, after); err == nil {
			t.Errorf("a page after %q", after)
		}
	}
}

// TestNoKeyInErrors: what a log may get names neither the credential nor another host.
func TestNoKeyInErrors(t *testing.T) {
	t.Parallel()
	c := psp.NewClient("http://127.0.0.1:1", apiKey, 1)
	_, _, err := c.List(t.Context(), payments.Charge, "")
	text, _ := json.Marshal(fmt.Sprintf("%v %+v %+v", err, c.Find(t.Context(), charge()), c.Charge(t.Context(), charge())))
	if err == nil || errors.Is(err, context.Canceled) || strings.Contains(string(text), apiKey) {
		t.Errorf("%s", text)
	}
}
