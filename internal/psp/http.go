package psp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/oncepay/oncepay/internal/payments"
)

const (
	// A host in reach answers a SYN within milliseconds. One that does not is better left to the
	// next try than given the whole call's time.
	connectTimeout = time.Second

	// callTimeout bounds a whole call. Longer than any charge that goes well, and short enough that
	// a provider that hangs holds a slot for seconds, not minutes.
	callTimeout = 10 * time.Second

	maxAnswer = 64 << 10
	maxPage   = 1 << 20 // a page of 100 entries
)

// Client speaks to the provider over HTTP. It logs nothing, and its errors never show the key of
// the API.
type Client struct {
	url    string
	apiKey string
	http   *http.Client
}

// NewClient returns a client for up to concurrency calls at a time.
func NewClient(baseURL, apiKey string, concurrency int) *Client {
	dialer := &net.Dialer{Timeout: connectTimeout, KeepAlive: 15 * time.Second}
	return &Client{
		url:    strings.TrimSuffix(baseURL, "/"),
		apiKey: apiKey,
		http: &http.Client{
			Timeout: callTimeout,

			// A charge is not sent to wherever an answer points.
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse
			},

			// Its own transport: no other part of the program uses up its connections. HTTP/1.1,
			// so that a connection that dies takes one call with it and not all.
			Transport: &http.Transport{
				DialContext:            dialer.DialContext,
				TLSHandshakeTimeout:    connectTimeout,
				MaxIdleConns:           concurrency,
				MaxIdleConnsPerHost:    concurrency,
				IdleConnTimeout:        30 * time.Second, // before the server's end, usually 60 s
				MaxResponseHeaderBytes: 32 << 10,
			},
		},
	}
}

// Charge implements Provider.
func (c *Client) Charge(ctx context.Context, op payments.Operation) Answer {
	return c.post(ctx, op, map[string]any{
		"amount": op.AmountMinor, "currency": strings.ToLower(op.Currency),
		"payment_method": op.CardToken, "metadata": metadata(op),
	})
}

// Refund implements Provider.
func (c *Client) Refund(ctx context.Context, op payments.Operation) Answer {
	return c.post(ctx, op, map[string]any{
		"charge": op.ChargeReference, "amount": op.AmountMinor, "metadata": metadata(op),
	})
}

// metadata lets people find our rows from the provider's dashboard.
func metadata(op payments.Operation) map[string]string {
	m := map[string]string{"operation_id": op.ID.String(), "payment_id": op.PaymentID.String()}
	if op.RefundID != nil {
		m["refund_id"] = op.RefundID.String()
	}
	return m
}

// Find implements Provider.
func (c *Client) Find(ctx context.Context, op payments.Operation) Answer {
	query := url.Values{"key": {op.Key()}}
	r, err := c.request(ctx, http.MethodGet, path(op.Kind)+"?"+query.Encode(), nil)
	if err != nil {
		return Answer{Outcome: Unreachable, Detail: oneLine(err.Error())}
	}

	status, header, body, err := c.do(r, maxAnswer)
	if err != nil {
		return broken(err)
	}
	return classifyFound(op, status, header, body)
}

// List implements Provider.
func (c *Client) List(
	ctx context.Context, kind payments.OperationKind, after string,
) ([]Entry, bool, error) {
	query := url.Values{"limit": {"100"}}
	if after != "" {
		query.Set("starting_after", after)
	}
	r, err := c.request(ctx, http.MethodGet, path(kind)+"?"+query.Encode(), nil)
	if err != nil {
		return nil, false, fmt.Errorf("list the provider's %ss: %w", objectOf(kind), err)
	}

	status, _, body, err := c.do(r, maxPage)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("answered %d", status)
	}
	if err != nil {
		return nil, false, fmt.Errorf("list the provider's %ss: %w", objectOf(kind), err)
	}

	data, more, err := readList(kind, body)
	if err == nil && more && len(data) == 0 {
		err = errors.New("an empty page before the last") // it would be asked for again and again
	}
	if err != nil {
		return nil, false, fmt.Errorf("list the provider's %ss: %w", objectOf(kind), err)
	}

	entries := make([]Entry, len(data))
	for i, o := range data {
		entries[i] = o.entry()
	}
	return entries, more, nil
}

func path(kind payments.OperationKind) string { return "/v1/" + objectOf(kind) + "s" }

func (c *Client) post(ctx context.Context, op payments.Operation, body map[string]any) Answer {
	// A map is written in the order of its keys, so every try sends the same bytes. The provider
	// compares them: the same key with another request is an error.
	text, err := json.Marshal(body)
	if err != nil {
		return Answer{Outcome: Unreadable, Detail: oneLine(err.Error())}
	}
	r, err := c.request(ctx, http.MethodPost, path(op.Kind), text)
	if err != nil {
		return Answer{Outcome: Unreachable, Detail: oneLine(err.Error())}
	}

	r.Header.Set("Content-Type", "application/json")

	// In lower case: by the usual spelling net/http would recognize a request that may be sent
	// again, and do that by itself when a connection breaks. Every try must be one that we counted.
	r.Header["idempotency-key"] = []string{op.Key()}

	status, header, answer, err := c.do(r, maxAnswer)
	if err != nil {
		return broken(err)
	}
	return classify(op, status, header, answer)
}

func (c *Client) request(
	ctx context.Context, method, path string, body []byte,
) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+c.apiKey)
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "oncepay")
	return r, nil
}

var errTooLong = errors.New("the answer is too long")

func (c *Client) do(r *http.Request, limit int64) (int, http.Header, []byte, error) {
	response, err := c.http.Do(r)
	if err != nil {
		return 0, nil, nil, err
	}
	defer response.Body.Close()

	body, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err == nil && int64(len(body)) > limit {
		err = errTooLong
	}
	return response.StatusCode, response.Header, body, err
}

// broken classifies a call that got no whole answer. Each of them may have been executed, even a
// connection that was refused: behind a balancer that may be the second half of the story.
func broken(err error) Answer {
	var timeout net.Error
	outcome := Unreachable

	switch {
	case errors.Is(err, errTooLong):
		outcome = Unreadable
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		outcome = Timeout
	}

	// Without the method and the URL, which are the same in every line.
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	return Answer{Outcome: outcome, Detail: oneLine(err.Error())}
}
