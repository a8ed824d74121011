package client_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncepay/oncepay/internal/client"
)

func TestAwaitEndsWithTheResult(t *testing.T) {
	t.Parallel()
	const processing, done = `{"status":"processing"}`, `{"status":"completed","refunding_minor":0}`
	waited := map[string]string{"Preference-Applied": "wait=5"}
	problem := map[string]string{"Content-Type": "application/problem+json"}
	for name, c := range map[string]struct {
		replies []reply
		status  int
		took    time.Duration // at least
		err     error
	}{
		"at once":          {[]reply{{status: 200, body: done}}, 200, 0, nil},
		"waited for":       {[]reply{{status: 200, header: waited, body: processing}, {status: 200, body: done}}, 200, 0, nil},
		"a refund is open": {[]reply{{status: 200, header: waited, body: `{"status":"completed","refunding_minor":7}`}, {status: 200, body: done}}, 200, 0, nil},
		"not waited for":   {[]reply{{status: 200, body: processing}, {status: 200, body: processing}, {status: 200, body: done}}, 200, 150 * time.Millisecond, nil},
		"away for a while": {[]reply{{err: errors.New("reset")}, {status: 503, header: map[string]string{"Retry-After": "2"}}, {status: 200, body: done}}, 200, 2 * time.Second, nil},
		"not there":        {[]reply{{status: 404, header: problem, body: `{"code":"not-found","retry":"never"}`}}, 404, 0, nil},
		"never":            {[]reply{{status: 200, header: waited, body: processing}, {status: 200, body: processing}}, 200, 10 * time.Second, client.ErrProcessing},
		"never an answer":  {[]reply{{err: errors.New("reset")}}, 0, 10 * time.Second, client.ErrProcessing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &script{replies: c.replies}
				api := client.Client{URL: "http://service", Token: "t", HTTP: &http.Client{Transport: s}}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				began := time.Now()
				a, err := api.Await(ctx, "/api/v1/payments/1")
				if a.Status != c.status || !errors.Is(err, c.err) || time.Since(began) < c.took {
					t.Errorf("%d %v after %v", a.Status, err, time.Since(began))
				}
				if c.err == nil && a.Status == 200 && string(a.Body) != done {
					t.Errorf("%s", a.Body)
				}
				if !strings.HasPrefix(s.requests[0].Prefer, "wait=5") || s.requests[0].Key != "" || s.requests[0].Authorization != "Bearer t" {
					t.Errorf("%+v", s.requests[0])
				}
			})
		})
	}
}
