package observe

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/testenv"
)

// shop is the whole service with a client that does a little of everything, until the test ends.
type shop struct {
	targets  map[string]string // where Prometheus finds each program
	profiles map[string]string // and where its profiles are
	api      string

	Token    string `json:"token"`
	Accounts []struct {
		ID uuid.UUID `json:"id"`
	} `json:"accounts"`
}

// programs builds them once for all tests of the package.
var programs = sync.OnceValues(func() (string, error) {
	var err error
	if built, err = os.MkdirTemp("", "oncepay-observe-"); err != nil {
		return "", err
	}
	return built, process.Build(context.Background(), built, nil, "api", "relay", "consumer", "worker", "fakepsp", "oncepay")
})

var built string // what programs made

func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(built) // temporary; nothing when no test needed it
	os.Exit(code)
}

func openShop(t *testing.T) *shop {
	t.Helper()
	built, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	s, dir := &shop{targets: map[string]string{}, profiles: map[string]string{}}, t.TempDir()
	start := func(name string, env ...string) string {
		t.Helper()
		if err := os.Symlink(filepath.Join(built, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		p, err := process.Start(t.Context(), dir, name, append(env, "PPROF_ADDR=127.0.0.1:0")...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Stop)
		log, err := os.ReadFile(filepath.Join(dir, name+".log"))
		if err != nil {
			t.Fatal(err)
		}
		if m := regexp.MustCompile(`"pprof_addr":"(.+?)"`).FindSubmatch(log); m != nil {
			s.profiles[name] = string(m[1])
		}
		s.targets[name] = p.Admin
		return p.Addr
	}

	db, prefix := testenv.Database(t), testenv.TopicPrefix(t)
	out, err := process.Output(t.Context(), []string{"DATABASE_URL=" + db.URL}, filepath.Join(built, "oncepay"), "seed", "--tenant", "observe", "--client", "shop", "--currency", "USD", "--accounts", "2", "--fund", "100000000", "--cards", "--json")
	if err == nil {
		err = json.Unmarshal(out, s)
	}
	if err != nil {
		t.Fatal(err)
	}

	const unhurried = "&statement_timeout=20s&idle_in_transaction_session_timeout=20s" // nothing fails because the machine is busy
	const key, secret, allow = "PSP_API_KEY=psp_test", "PSP_WEBHOOK_SECRET=whsec_b25jZXBheS1kZXZlbG9wbWVudC1vbmx5", "WEBHOOKS_ALLOW=127.0.0.0/8"
	kafka := []string{"KAFKA_BROKERS=" + strings.Join(testenv.Brokers(t), ","), "TOPIC_PREFIX=" + prefix}
	s.api = start("api", "DATABASE_URL="+db.URLAs("api_write")+unhurried, "DATABASE_READ_URL="+db.URLAs("api_read")+unhurried, "HTTP_ADDR=127.0.0.1:0", "AUTHORIZATION_MIN=1s", secret, allow)
	psp := start("fakepsp", "FAKEPSP_ADDR=127.0.0.1:0", "FAKEPSP_DIR="+filepath.Join(dir, "psp"), "FAKEPSP_WEBHOOK_URL=http://"+s.api+"/webhooks/psp", key, secret)
	delete(s.targets, "fakepsp")
	start("relay", append(kafka, "DATABASE_URL="+db.URLAs("relay"))...)
	start("consumer", append(kafka, "DATABASE_URL="+db.URLAs("consumer"), "CONSUMER_GROUP="+prefix+"statements")...)
	start("worker", append(kafka, "DATABASE_URL="+db.URLAs("worker"), "WEBHOOKS_GROUP="+prefix+"webhooks", "PSP_URL=http://"+psp, key, allow)...)

	customer := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(customer.Close)
	if status, body := s.post(t.Context(), "webhook-endpoints", "endpoint", fmt.Sprintf(`{"url":%q}`, customer.URL)); status != http.StatusCreated {
		t.Fatalf("webhook endpoint: %d %s", status, body)
	}
	s.shopUntilClosed(t)
	return s
}

// shopUntilClosed pays fifty times a second, repeats, uses a key twice, pays by card, holds money that nobody captures, and looks.
func (s *shop) shopUntilClosed(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	var client sync.WaitGroup
	t.Cleanup(func() { stop(); client.Wait() })
	next := time.NewTicker(20 * time.Millisecond)

	client.Go(func() {
		defer next.Stop()
		between := fmt.Sprintf(`"currency":"USD","source_account":%q,"destination_account":%q`, s.Accounts[0].ID, s.Accounts[1].ID)
		for i := 0; ctx.Err() == nil; i++ {
			key := fmt.Sprintf("order-%d", i)
			body := fmt.Sprintf(`{"amount_minor":%d,%s}`, 100+i, between)
			s.post(ctx, "payments", key, body)
			switch i % 10 {
			case 1:
				s.post(ctx, "payments", key, body)
			case 0, 3, 6:
				s.post(ctx, "payments", key+"-card", fmt.Sprintf(`{"amount_minor":100,"currency":"USD","payment_method":{"type":"card","token":"tok_visa"},"destination_account":%q}`, s.Accounts[1].ID))
			case 5:
				s.post(ctx, "payments", key+"-hold", `{"amount_minor":100,"capture":"manual","authorization_seconds":1,`+between+`}`)
			case 7:
				s.send(ctx, "GET", "accounts/"+s.Accounts[0].ID.String(), "", "")
			}
			if i%30 == 9 {
				s.post(ctx, "payments", key, fmt.Sprintf(`{"amount_minor":1,%s}`, between))
			}
			select {
			case <-ctx.Done():
			case <-next.C:
			}
		}
	})
}

func (s *shop) post(ctx context.Context, path, key, body string) (status int, text string) {
	return s.send(ctx, "POST", path, key, body)
}

func (s *shop) send(ctx context.Context, method, path, key, body string) (status int, text string) {
	request, err := http.NewRequestWithContext(ctx, method, "http://"+s.api+"/api/v1/"+path, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	request.Header.Set("Authorization", "Bearer "+s.Token)
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error() // the test ends
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(answer)
}
