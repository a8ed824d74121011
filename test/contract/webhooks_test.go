package contract_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/internal/webhooks"
)

const endpointsPath = "/api/v1/webhook-endpoints"

// failing is a database whose transactions do not begin; without an error it panics.
type failing struct{ err error }

func (f failing) BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error) {
	if f.err == nil {
		panic(errUnforeseen)
	}
	return nil, f.err
}

// endpoint makes room for a new webhook endpoint and opens it.
func (s *service) endpoint(t *testing.T, url string) uuid.UUID {
	t.Helper()
	s.withoutEndpoints(t)
	var e webhooks.Secret
	err := pgx.BeginFunc(t.Context(), s.owner, func(tx pgx.Tx) (err error) {
		e, err = webhooks.Create(t.Context(), tx, s.tenant, url, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return e.ID
}

func (s *service) withoutEndpoints(t *testing.T) {
	t.Helper()
	if _, err := s.owner.Exec(t.Context(), `UPDATE webhook_endpoints SET state = 'deleted', disabled_reason = ''`); err != nil {
		t.Fatal(err)
	}
}

// changed returns the path of what is done to a new endpoint.
func (s *service) changed(what string) func(*testing.T) string {
	return func(t *testing.T) string {
		return endpointsPath + "/" + s.endpoint(t, "https://example.com/").String() + what
	}
}

// redelivered returns the path of a new delivery of a new endpoint.
func (s *service) redelivered(t *testing.T) string {
	t.Helper()
	endpoint := s.endpoint(t, "https://example.com/")
	return endpointsPath + "/" + endpoint.String() + "/deliveries/" + s.delivery(t).String() + "/redeliver"
}

// delivery writes an event for the endpoints of the tenant.
func (s *service) delivery(t *testing.T) uuid.UUID {
	t.Helper()
	e := webhooks.Event{
		ID: uuid.Must(uuid.NewV7()), Tenant: s.tenant, Type: "payment.completed", Source: "/oncepay",
		Subject: uuid.NewString(), Time: time.Now(), Payload: []byte("{}"),
	}
	err := pgx.BeginFunc(t.Context(), s.owner, func(tx pgx.Tx) error {
		return webhooks.Write(t.Context(), tx, []webhooks.Event{e})
	})
	if err != nil {
		t.Fatal(err)
	}
	return e.ID
}

// gone makes an endpoint answer 410, so that it is disabled.
func (s *service) gone(t *testing.T) {
	t.Helper()
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) }))
	defer receiver.Close()
	endpoint := s.endpoint(t, receiver.URL)
	s.delivery(t)

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	sender := &webhooks.Sender{DB: s.db.Pool(t, "worker"), Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	go func() { ended <- sender.Run(ctx) }()
	testenv.Eventually(t, 10*time.Second, func() error {
		var e webhooks.Endpoint
		err := pgx.BeginFunc(t.Context(), s.owner, func(tx pgx.Tx) (err error) {
			e, err = webhooks.Find(t.Context(), tx, s.tenant, endpoint)
			return err
		})
		if err == nil && e.State != webhooks.Disabled {
			err = errUnforeseen
		}
		return err
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func (s *service) webhookOutcomes(t *testing.T, f *referee) {
	t.Helper()
	s.withoutEndpoints(t)
	all := f.judge(t, s.post("for all", endpointsPath, "webhook-all", `{"url":"https://example.com/hooks"}`, 201, ""))
	f.twice(t, s.post("for some", endpointsPath, "webhook-some",
		`{"url":"https://example.com/hooks","event_types":["payment.completed","payment.completed","refund.failed"]}`, 201, ""))
	var e struct{ ID, Secret string }
	if err := json.Unmarshal(all.Body.Bytes(), &e); err != nil || !strings.HasPrefix(e.Secret, "whsec_") {
		t.Fatalf("%s: %v", all.Body, err)
	}
	path := endpointsPath + "/" + e.ID
	s.delivery(t)
	s.delivery(t)

	foreign := s.get("of another tenant", path, 404, "not-found")
	foreign.bearer = s.stranger
	for _, c := range []call{
		s.get("endpoint", path, 200, ""), s.get("endpoints", endpointsPath, 200, ""),
		s.get("deliveries", path+"/deliveries", 200, ""), s.get("the first page", path+"/deliveries?limit=1", 200, ""),
		foreign,
		s.get("no such endpoint", endpointsPath+"/"+uuid.NewString(), 404, "not-found"),
		s.get("deliveries of none", endpointsPath+"/"+uuid.NewString()+"/deliveries", 404, "not-found"),
		s.get("query", endpointsPath+"?limit=1", 400, "invalid-query"), s.get("query", path+"?x=1", 400, "invalid-query"),
		s.get("cursor", path+"/deliveries?cursor=x", 400, "invalid-cursor"), s.get("limit", path+"/deliveries?limit=0", 400, "invalid-query"),
	} {
		if w := f.judge(t, c); strings.Contains(w.Body.String(), "whsec_") {
			t.Errorf("%s shows the secret", c.name)
		}
	}
	for _, what := range []string{"/rotate-secret", "/enable", "/deliveries/" + uuid.NewString() + "/redeliver"} {
		f.judge(t, s.post("none", endpointsPath+"/"+uuid.NewString()+what, "none", `{}`, 404, "not-found"))
		f.judge(t, s.post("no id", endpointsPath+"/1"+what, "none", `{}`, 404, "not-found"))
	}
	for _, body := range []string{
		`{}`, `{"url":null}`, `{"url":"http://example.com/"}`, `{"url":"https://127.0.0.1/"}`, `{"url":"https://u:p@example.com/"}`,
		`{"url":"https://2130706433/"}`, `{"url":"https://example.com/","event_types":[]}`, `{"url":"https://example.com/","event_types":["payment.paid"]}`,
		`{"url":"https://example.com/","event_types":"payment.completed"}`,
	} {
		// What a URL must be is more than a schema can say.
		c := s.post(body, endpointsPath, "k1", body, 422, "invalid-field")
		w := httptest.NewRecorder()
		c.handler.ServeHTTP(w, c.request(t))
		if w.Code != c.status || !strings.Contains(w.Body.String(), `"code":"invalid-field"`) {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
	}
	f.judge(t, s.post("no url", endpointsPath, "k1", `{}`, 422, "invalid-field"))
	for range webhooks.MaxEndpoints - 2 {
		f.judge(t, s.post("up to the limit", endpointsPath, uuid.NewString(), `{"url":"https://example.com/hooks"}`, 201, ""))
	}
	f.judge(t, s.post("one too many", endpointsPath, uuid.NewString(), `{"url":"https://example.com/hooks"}`, 422, "too-many-webhook-endpoints"))
	s.deletes(t, f, path)
}

// deletes asks the one operation that is neither GET nor POST for everything.
func (s *service) deletes(t *testing.T, f *referee, path string) {
	t.Helper()
	remove := func(name, path string, status int, code string) call {
		return call{name: name, handler: s, method: http.MethodDelete, path: path, bearer: s.ordinary, status: status, code: code}
	}
	f.judge(t, remove("query", path+"?x=1", 400, "invalid-query"))
	f.judge(t, remove("none", endpointsPath+"/"+uuid.NewString(), 404, "not-found"))
	f.judge(t, remove("a method that there is not", path+"/enable", 405, "method-not-allowed"))
	c := remove("of another tenant", path, 404, "not-found")
	c.bearer = s.stranger
	f.judge(t, c)
	c = remove("bad credential", path, 401, "unauthorized")
	c.bearer = "oncepay_x"
	f.judge(t, c)
	for _, wrong := range []struct {
		err    error
		status int
		code   string
	}{{context.DeadlineExceeded, 503, "unavailable"}, {idempotency.ErrOutcomeUnknown, 503, "outcome-unknown"}, {nil, 500, "internal"}} {
		c = remove("no database", path, wrong.status, wrong.code)
		c.handler = s.with(func(o *httpapi.Options) { o.Write = failing{wrong.err} })
		f.judge(t, c)
	}
	limited := s.with(func(o *httpapi.Options) { o.RateLimit = 0.001 })
	for _, c := range []call{remove("delete", path, 200, ""), remove("over the rate", path, 429, "rate-limited")} {
		c.handler = limited
		f.judge(t, c)
	}
	f.judge(t, remove("again", path, 200, ""))
	f.judge(t, s.get("deleted", path, 404, "not-found"))
}
