package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncepay/oncepay/deploy"
	"github.com/oncepay/oncepay/internal/embedded"
	"github.com/oncepay/oncepay/internal/fakepsp"
	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/test/observe"
	"github.com/oncepay/oncepay/test/pgproxy"
)

// watched is a chain with its own broker, database proxy and PSP, under traffic, watched by a real Prometheus.
type watched struct {
	*chain
	kafka    *embedded.Kafka
	postgres *pgproxy.Proxy
	pspDown  atomic.Bool
	running  map[string]*process.Process // api, relay-1, relay-2, consumer, worker
	start    map[string]func(more ...string) *process.Process
	paused   atomic.Bool
	*observe.Prometheus
}

// TestAlarmsOfWhatIsGone: each row of the runbook's table "gone, alarms" is done to the running chain, and exactly its alarms
// fire. Before that, every rule's expression finds the series that it is about.
func TestAlarmsOfWhatIsGone(t *testing.T) {
	observe.Find(t, "prometheus")
	w := newWatched(t, hurried())
	w.wantEverySeries(t)
	w.wantFiring(t) // nothing

	for _, row := range documentedOutages(t) {
		began := time.Now()
		back := w.takeAway(t, row.gone)
		w.wantFiring(t, row.alarms...)
		t.Logf("without %s: %v, seen after %.0f s", row.gone, row.alarms, time.Since(began).Seconds())
		back()
		if row.gone != "Postgres" { // the last; a burnt budget stays burnt for an hour
			w.wantFiring(t)
		}
	}
}

// hurried returns the rules with shorter times. What is about slowness keeps its own: this machine may be slow.
func hurried() string {
	rules := regexp.MustCompile(`for: (30s|1m|2m|5m)\b`).ReplaceAllString(deploy.Rules, "for: 3s")
	return strings.NewReplacer("[1m]", "[6s]", "[2m]", "[6s]",
		"_seconds) > 60", "_seconds) > 6", "_seconds) > 15", "_seconds) > 3", "_seconds) > 300", "_seconds) > 6").Replace(rules)
}

type outage struct {
	gone   string
	alarms []string
}

func documentedOutages(t *testing.T) (all []outage) {
	t.Helper()
	text, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| gone | alarms | until it is back |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	for row := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(row, "| \n"), " | ")
		o := outage{cells[0], strings.Split(cells[1], ", ")}
		if o.alarms[0] == "ProgramGone" {
			o.alarms[0] += " " + o.gone
		}
		all = append(all, o)
	}
	if len(all) != 8 {
		t.Fatalf("the runbook's table has %d rows", len(all))
	}
	return all
}

func newWatched(t *testing.T, rules string) *watched {
	t.Helper()
	w := &watched{running: map[string]*process.Process{}, start: map[string]func(...string) *process.Process{}}
	var err error
	if w.kafka, err = embedded.StartKafka(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.kafka.Stop)
	w.chain = newChainWith(t, func(c *chain) {
		c.db = testenv.Database(t)
		w.postgres = pgproxy.Start(t, c.db.URL, func(int, int) pgproxy.Fate { return pgproxy.Pass })
		c.url = func(role string) string { return w.postgres.URL(c.db.URLAs(role)) }
		c.relayEnv = []string{"KAFKA_BROKERS=" + strings.Join(w.kafka.Brokers(), ","), "TOPIC_PREFIX=" + c.prefix, "TOPIC_MIN_INSYNC=1"} // one broker
		c.consumerEnv = append(c.relayEnv[:2:2], "CONSUMER_GROUP="+c.prefix+"statements")
	})
	_, err = process.Output(t.Context(), []string{"DATABASE_URL=" + w.db.URL}, filepath.Join(w.dir, "oncepay"), "seed", "--tenant", "e2e", "--client", "shop", "--currency", "USD", "--accounts", "2", "--cards", "--json")
	if err != nil {
		t.Fatal(err)
	}

	env := map[string][]string{
		"api":      {"DATABASE_URL=" + w.url("api_write") + unhurried, "DATABASE_READ_URL=" + w.url("api_read") + unhurried, "HTTP_ADDR=" + w.api.Addr},
		"relay":    append(w.relayEnv[:3:3], "DATABASE_URL="+w.url("relay"), "RELAY_LEASE=2s"),
		"consumer": append(w.consumerEnv[:3:3], "DATABASE_URL="+w.url("consumer")),
		"worker":   append(w.relayEnv[:2:2], "DATABASE_URL="+w.url("worker"), "WEBHOOKS_GROUP="+w.prefix+"webhooks", "PSP_URL="+w.startPSP(t), "PSP_API_KEY=sk_test"),
	}
	w.running["api"], w.running["relay-1"], w.running["consumer"] = w.api, w.relay, w.consumer
	for _, name := range []string{"api", "relay-1", "relay-2", "consumer", "worker"} {
		program, _, _ := strings.Cut(name, "-")
		w.start[name] = func(more ...string) *process.Process {
			return w.chain.start(program, append(env[program][:len(env[program]):len(env[program])], more...)...)
		}
		if w.running[name] == nil {
			w.running[name] = w.start[name]()
		}
	}
	w.traffic(t)
	w.Prometheus = observe.Start(t, map[string]string{
		"api": w.running["api"].Admin, "relay": w.running["relay-1"].Admin + "," + w.running["relay-2"].Admin,
		"consumer": w.running["consumer"].Admin, "worker": w.running["worker"].Admin,
	}, rules)
	return w
}

// startPSP serves a PSP that can be taken away.
func (w *watched) startPSP(t *testing.T) string {
	t.Helper()
	psp, err := fakepsp.Open(t.TempDir(), fakepsp.Options{APIKey: "sk_test"})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if w.pspDown.Load() {
			panic(http.ErrAbortHandler)
		}
		psp.ServeHTTP(rw, r)
	}))
	t.Cleanup(func() {
		psp.Drain()
		server.Close()
		_ = psp.Close()
	})
	return server.URL
}

// traffic pays ten times a second, and by card three times, until the test ends. What fails is not repeated.
func (w *watched) traffic(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var clients sync.WaitGroup
	pay := func(every time.Duration, name, body string) {
		clients.Go(func() {
			next := time.NewTicker(every)
			defer next.Stop()
			for n := 0; ; n++ {
				select {
				case <-ctx.Done():
					return
				case <-next.C:
				}
				if !w.paused.Load() {
					_, _ = w.send(ctx, http.MethodPost, "/api/v1/payments", fmt.Sprintf("%s-%d", name, n), body)
				}
			}
		})
	}
	for n := range 4 {
		pay(400*time.Millisecond, fmt.Sprintf("account-%d", n), fmt.Sprintf(`{"amount_minor":1,"currency":"USD","source_account":%q,"destination_account":%q}`, w.Accounts[0].ID, w.Accounts[1].ID))
	}
	pay(300*time.Millisecond, "card", fmt.Sprintf(`{"amount_minor":1,"currency":"USD","destination_account":%q,"payment_method":{"type":"card","token":"tok_visa"}}`, w.Accounts[1].ID))
	t.Cleanup(func() {
		stop()
		clients.Wait()
	})
}

// takeAway does an outage, and returns how to end it.
func (w *watched) takeAway(t *testing.T, what string) (back func()) {
	t.Helper()
	switch what {
	case "Kafka":
		return w.quietly(t, w.kafka.SetDown)
	case "Postgres":
		return w.quietly(t, w.postgres.SetDown)
	case "the PSP":
		w.pspDown.Store(true)
		return func() { w.pspDown.Store(false) }
	case "one of two relays":
		return w.kill("relay-1")
	case "relay":
		one, two := w.kill("relay-1"), w.kill("relay-2")
		return func() { one(); two() }
	}
	return w.kill(what)
}

// kill ends a program. It comes back at the same address, where Prometheus looks for it.
func (w *watched) kill(name string) (back func()) {
	admin := w.running[name].Admin
	w.running[name].Kill()
	return func() { w.running[name] = w.start[name]("ADMIN_ADDR=" + admin) }
}

// quietly takes something away when all events are processed: one that is on its way then stays in a consumer's lag.
func (w *watched) quietly(t *testing.T, setDown func(bool)) (back func()) {
	t.Helper()
	w.paused.Store(true)
	w.stays(t, func() error { // what is shown was measured up to two seconds ago
		left, err := w.Query("sum(consumer_lag_events) + max(outbox_oldest_unsent_seconds) + sum(psp_operations_waiting)")
		if err == nil && (len(left) != 1 || left[0].Value != 0) {
			err = fmt.Errorf("left: %v", left)
		}
		return err
	})
	setDown(true)
	w.paused.Store(false)
	return func() { setDown(false) }
}

// wantFiring waits until exactly these alarms have fired for three seconds.
func (w *watched) wantFiring(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(want)
	w.stays(t, func() error {
		firing, err := w.Query(`ALERTS{alertstate="firing"}`)
		if err != nil {
			return err
		}
		var got []string
		for _, a := range firing {
			name := a.Labels["alertname"]
			if name == "ProgramGone" {
				name += " " + a.Labels["job"]
			}
			if !slices.Contains(got, name) {
				got = append(got, name)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("%v fire, want %v", got, want)
		}
		return nil
	})
}

// stays waits until a condition has held for three seconds.
func (w *watched) stays(t *testing.T, condition func() error) {
	t.Helper()
	var since time.Time
	testenv.Eventually(t, 90*time.Second, func() error {
		if err := condition(); err != nil {
			since = time.Time{}
			return err
		}
		if since.IsZero() {
			since = time.Now()
		}
		if held := time.Since(since); held < 3*time.Second {
			return fmt.Errorf("it has held for %s only", held)
		}
		return nil
	})
}

// wantEverySeries evaluates each rule, and looks for the series of each of its selectors.
func (w *watched) wantEverySeries(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, time.Minute, func() error {
		response, err := http.Get(w.URL + "/api/v1/rules")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return err
		}
		var answer struct {
			Data struct {
				Groups []struct {
					Rules []struct{ Name, Query, Health, LastError string }
				}
			}
		}
		if err := json.Unmarshal(body, &answer); err != nil {
			return err
		}
		rules := 0
		for _, g := range answer.Data.Groups {
			for _, r := range g.Rules {
				rules++
				if r.Health != "ok" {
					return fmt.Errorf("%s is %s: %s", r.Name, r.Health, r.LastError)
				}
				for _, selector := range selectors(r.Query) {
					found, err := w.Query(selector)
					if err == nil && len(found) == 0 {
						err = errors.New("nothing is found")
					}
					if err != nil {
						return fmt.Errorf("%s: %s: %w", r.Name, selector, err)
					}
				}
			}
		}
		if rules < 40 {
			return fmt.Errorf("%d rules", rules)
		}
		return nil
	})
}

var (
	selector = regexp.MustCompile(`\b(?:up|[a-z]+[_:][a-z0-9_:]+)\b(?:\{[^}]*\})?`)
	failed   = regexp.MustCompile(`status=~"5\.\."[, ]*`) // no request has failed yet
	function = regexp.MustCompile(`\b[a-z_]+\(`)
	listed   = regexp.MustCompile(`(?:by|on) \([^)]*\)|"metric", "[^)]*"`)
)

// selectors returns those of an expression of which there are series while all is well: those about topics that cannot be
// used, and the share of failed requests, come with the failure.
func selectors(expression string) (all []string) {
	text := function.ReplaceAllString(listed.ReplaceAllString(failed.ReplaceAllString(expression, ""), ""), "(")
	for _, s := range selector.FindAllString(text, -1) {
		if !strings.HasPrefix(s, "relay_topic_unavailable") && !strings.HasPrefix(s, "relay_topic_partitions_") && !strings.HasPrefix(s, "oncepay:") {
			all = append(all, s)
		}
	}
	return all
}
