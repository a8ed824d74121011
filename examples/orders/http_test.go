package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"
)

func TestPlaceShowAndCancel(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, 10).Pool(t, "")
	server := httptest.NewServer(routes(db, uuid.New()))
	t.Cleanup(server.Close)
	const good = `{"item": "book", "quantity": 2, "card": "tok_visa"}`

	// What is refused leaves the key free.
	for body, want := range map[string]int{
		``: 400,
		`{"item": "book", "amount_minor": 1, "quantity": 1, "card": "tok_visa"}`:                                 400,
		`{"item": "book", "quantity": 0, "card": "tok_visa"}`:                                                    422,
		`{"item": "book", "quantity": 1}`:                                                                        422,
		`{"item": "book", "quantity": 1, "card": "tok visa"}`:                                                    422,
		`{"item": "book", "quantity": 1, "card": "tok_visa", "account": "0198a6de-0000-7000-8000-000000000000"}`: 422,
	} {
		if status, text, _ := send(t, server.URL+"/orders", "first", body); status != want {
			t.Errorf("%s: %d %s, want %d", body, status, text, want)
		}
	}

	status, first, _ := send(t, server.URL+"/orders", "first", good)
	again, second, replayed := send(t, server.URL+"/orders", "first", good)
	if status != 201 || again != 201 || first != second || !replayed {
		t.Fatalf("%d %s; again %d %s, replayed %t", status, first, again, second, replayed)
	}
	if status, text, _ := send(t, server.URL+"/orders", "second", `{"item": "pony", "quantity": 1, "card": "tok_visa"}`); status != 422 {
		t.Errorf("an unknown item: %d %s", status, text)
	}

	var placed order
	if err := json.Unmarshal([]byte(first), &placed); err != nil {
		t.Fatal(err)
	}
	if placed.State != Placed || placed.AmountMinor != 3000 || strings.Contains(first, "tok_visa") {
		t.Errorf("placed %s", first)
	}
	path := server.URL + "/orders/" + placed.ID.String()
	if status, text, _ := send(t, path, "", ""); status != 200 || text != first {
		t.Errorf("it is shown as %d %s, was placed as %s", status, text, first)
	}
	for range 2 {
		if status, text, _ := send(t, path+"/cancel", "none", ""); status != 202 || !strings.Contains(text, `"cancel_requested":true`) {
			t.Errorf("cancel: %d %s", status, text)
		}
	}

	if _, err := db.Exec(t.Context(), `UPDATE orders SET state = 'confirmed', cancel_requested = false`); err != nil {
		t.Fatal(err)
	}
	if status, text, _ := send(t, path+"/cancel", "none", ""); status != 409 || !strings.Contains(text, `"cancel_requested":false`) {
		t.Errorf("cancel after it was confirmed: %d %s", status, text)
	}
	for _, path := range []string{"/orders/" + uuid.NewString(), "/orders/1"} {
		if status, _, _ := send(t, server.URL+path, "", ""); status != 404 {
			t.Errorf("%s: %d", path, status)
		}
	}

	var events int
	if err := db.QueryRow(t.Context(), `SELECT count(*) FROM outbox_events`).Scan(&events); err != nil || events != 1 {
		t.Errorf("%d events for one order, %v", events, err)
	}
}

// send sends a GET, or with a key a POST.
func send(t *testing.T, url, key, body string) (status int, text string, replayed bool) {
	t.Helper()
	method := http.MethodGet
	if key != "" {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(b), response.Header.Get("Idempotent-Replayed") == "true"
}
