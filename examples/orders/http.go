package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/idempotency"
)

// cardToken is what the payments service takes for one.
var cardToken = regexp.MustCompile(`^[!-~]{1,255}$`)

const handlerTimeout = 8 * time.Second // up to the COMMIT: idempotency/doc.go

// routes serves customers. Who they are is left out: a real shop would authenticate them, take Scope
// from that, and show each customer only their own orders.
func routes(db *pgxpool.Pool, shop uuid.UUID) http.Handler {
	place := &idempotency.Handler{
		DB: db, Validate: validate,
		Scope: func(*http.Request) (tenant, client uuid.UUID, ok bool) {
			return uuid.Max, uuid.Max, true
		},
		Do: func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			return placeOrder(w, r, tx, shop)
		},
	}

	mux := http.NewServeMux()
	mux.Handle("POST /orders", place)
	mux.HandleFunc("GET /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, db, http.StatusOK, selectOrder)
	})
	mux.HandleFunc("POST /orders/{id}/cancel", func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, db, http.StatusAccepted, cancelOrder)
	})

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), handlerTimeout)
		defer cancel()
		mux.ServeHTTP(w, r.WithContext(ctx))
	})
}

// newOrder is the body of POST /orders.
type newOrder struct {
	Item     string     `json:"item"`
	Quantity int        `json:"quantity"`
	Account  *uuid.UUID `json:"account"` // who pays: an account of the payments service
	Card     *string    `json:"card"`    // or a card's token
}

func decode(r *http.Request) (n newOrder, err error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return n, err
	}

	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	err = d.Decode(&n)
	return n, err
}

// validate refuses what must not take the key: the customer may correct it and send it again. It is
// strict about what the payments service would not store, because such an order would wait.
func validate(w http.ResponseWriter, r *http.Request) bool {
	n, err := decode(r)
	switch {
	case err != nil:
		http.Error(w, "the body is no order: "+err.Error(), http.StatusBadRequest)
	case n.Quantity < 1 || n.Quantity > 1000:
		http.Error(w, "quantity must be 1 to 1000", http.StatusUnprocessableEntity)
	case (n.Account == nil) == (n.Card == nil):
		http.Error(w, "name an account or a card", http.StatusUnprocessableEntity)
	case n.Card != nil && !cardToken.MatchString(*n.Card):
		http.Error(w, "card must be a token, such as tok_visa", http.StatusUnprocessableEntity)
	default:
		return true
	}
	return false
}

// The price is the one of now. Nothing is charged or reserved yet.
const insertOrder = `
INSERT INTO orders (id, item, quantity, amount_minor, currency, account, card, pay_to)
SELECT $1, item, $3::int, price_minor * $3::int, currency, $4, $5, $6 FROM stock WHERE item = $2
RETURNING ` + columns

// placeOrder is the work of a new request, in its transaction. It runs again after a lost race.
func placeOrder(w http.ResponseWriter, r *http.Request, tx pgx.Tx, shop uuid.UUID) error {
	n, err := decode(r)
	if err != nil {
		return err
	}

	id := uuid.Must(uuid.NewV7())
	o, err := one(r.Context(), tx, insertOrder, id, n.Item, n.Quantity, n.Account, n.Card, shop)
	if errors.Is(err, pgx.ErrNoRows) {
		http.Error(w, "there is no such item", http.StatusUnprocessableEntity)
		return nil
	}
	if err != nil {
		return err
	}

	w.Header().Set("Location", "/orders/"+o.ID.String())
	write(w, http.StatusCreated, o) // kept until COMMIT, then sent
	return appendEvent(r.Context(), tx, o)
}

const selectOrder = `SELECT ` + columns + ` FROM orders WHERE id = $1`

// Too late once it is confirmed: this finds no row then, and none that ended otherwise. A repeat
// changes nothing, so it needs no key.
const cancelOrder = `
UPDATE orders SET cancel_requested = true
WHERE id = $1 AND (cancel_requested OR state IN ('placed', 'reserved', 'processing', 'charged'))
RETURNING ` + columns

// answer runs a statement about the order of the path.
func answer(w http.ResponseWriter, r *http.Request, db *pgxpool.Pool, status int, sql string) {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		http.NotFound(w, r)
		return
	}

	o, err := one(r.Context(), db, sql, id)
	if errors.Is(err, pgx.ErrNoRows) && status == http.StatusAccepted {
		if o, err = one(r.Context(), db, selectOrder, id); err == nil {
			status = http.StatusConflict
		}
	}

	switch {
	case errors.Is(err, pgx.ErrNoRows):
		http.NotFound(w, r)
	case err != nil:
		slog.ErrorContext(r.Context(), "request failed", "order", id, "error", err)
		http.Error(w, "unavailable", http.StatusServiceUnavailable)
	default:
		write(w, status, o)
	}
}

func write(w http.ResponseWriter, status int, o order) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(o) // a client that is gone may ask again
}
