package webhooks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const (
	// maxAnswer is how much of an answer is read, so that its connection can be used again. Nothing
	// of it is kept.
	maxAnswer = 64 << 10

	connectTimeout = 3 * time.Second

	// pingAfter is for how long nothing may be heard on an HTTP/2 connection before the other end is
	// asked. Without that, calls would go on to one whose other end is gone, for a quarter of an hour.
	pingAfter = 5 * time.Second
)

// newClient returns a client that only calls allowed addresses, uses no proxy and follows no redirect.
func newClient(allow []netip.Prefix, resolver *net.Resolver, perEndpoint int) *http.Client {
	transport := func(public bool) *http.Transport {
		dialer := &net.Dialer{Timeout: connectTimeout, Resolver: resolver, Control: control(allow, public)}
		return &http.Transport{
			Proxy:                  nil, // a proxy would resolve names and connect in our place
			DialContext:            dialer.DialContext,
			ForceAttemptHTTP2:      true,
			HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: connectTimeout},
			TLSHandshakeTimeout:    connectTimeout,
			MaxIdleConnsPerHost:    perEndpoint,
			MaxIdleConns:           4 * perEndpoint,
			IdleConnTimeout:        time.Minute,
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxAnswer,
		}
	}

	return &http.Client{
		Transport: schemes{"https": transport(true), "http": transport(false)},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // the answer is a 3xx, which is a failure
		},
	}
}

// schemes is a transport for each scheme.
type schemes map[string]*http.Transport

func (s schemes) RoundTrip(r *http.Request) (*http.Response, error) {
	t, known := s[r.URL.Scheme]
	if !known {
		return nil, ErrAddress
	}
	return t.RoundTrip(r)
}

// CloseIdleConnections is what http.Client calls.
func (s schemes) CloseIdleConnections() {
	for _, t := range s {
		t.CloseIdleConnections()
	}
}

// call sends a delivery and returns the status of the answer.
func call(ctx context.Context, client *http.Client, d *delivery) (status int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url, bytes.NewReader(d.body))
	if err != nil {
		return 0, err
	}
	// A broken connection is a failure like any other: net/http must not repeat the call.
	r.GetBody = nil

	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "oncepay-webhooks")
	if err := sign(r.Header, d, time.Now()); err != nil {
		return 0, err
	}

	answer, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, maxAnswer)) // the status says it all
	return answer.StatusCode, nil
}

// sign sets the headers of Standard Webhooks, with a signature for each valid secret.
func sign(h http.Header, d *delivery, at time.Time) error {
	signatures := ""
	for _, secret := range d.secrets {
		signer, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			return errors.New("the secret is malformed") // the library's error may show a part of it
		}
		signature, err := signer.Sign(d.event, at, d.body)
		if err != nil {
			return fmt.Errorf("sign: %w", err)
		}
		if signatures != "" {
			signatures += " "
		}
		signatures += signature
	}

	h.Set(standardwebhooks.HeaderWebhookID, d.event)
	h.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(at.Unix(), 10))
	h.Set(standardwebhooks.HeaderWebhookSignature, signatures)
	return nil
}

// reason is a failure in our own words, which the tenant may read: errors of the network would show
// addresses.
func reason(status int, err error) string {
	var network net.Error
	var dns *net.DNSError

	switch {
	case err == nil:
		return fmt.Sprintf("the answer was %d", status)
	case errors.Is(err, ErrAddress):
		return "the address is not allowed"
	case errors.As(err, &dns):
		return "the name could not be resolved"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return "no answer in time"
	}
	return "no connection, or no answer"
}
