package webhooks_test

import (
	"fmt"
	"hash/fnv"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/webhooks"
)

// deliveriesWanted is how many the two load tests send: few, or WEBHOOKS_LOAD.
func deliveriesWanted(t testing.TB) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("WEBHOOKS_LOAD"))
	if err != nil {
		return 2000
	}
	return n
}

// fill writes n events in payments of four, as a consumer would: a thousand in a transaction.
func (b *bench) fill(t testing.TB, n int) {
	t.Helper()
	var events []webhooks.Event
	for i := range n {
		if i%4 == 0 && len(events) >= 1000 {
			b.write(t, events...)
			events = nil
		}
		payment := uuid.NewSHA1(uuid.NameSpaceOID, []byte(strconv.Itoa(i/4)))
		events = append(events, b.event(payment, int64(i%4+1)))
	}
	b.write(t, events...)
}

// TestOrderPerPayment sends with failures: 1 of 10 calls is answered 500, or not understood.
func TestOrderPerPayment(t *testing.T) {
	t.Parallel()
	b, n := newBench(t), deliveriesWanted(t)
	var mu sync.Mutex
	last := map[string]int{} // of each payment
	wrong, failures := 0, 0
	r := receive(t, func(call int, r received) int {
		h := fnv.New32a()
		fmt.Fprint(h, call)
		mu.Lock()
		defer mu.Unlock()
		if h.Sum32()%10 == 0 {
			failures++
			return http.StatusInternalServerError
		}
		sequence, err := strconv.Atoi(r.body.Sequence)
		if err != nil || sequence != last[r.body.Subject]+1 {
			wrong++
		}
		last[r.body.Subject] = sequence
		return http.StatusNoContent
	})
	b.endpoint(t, r.URL)
	b.fill(t, n)
	b.sending(t)
	b.sending(t) // two of them
	began := time.Now()
	b.sent(t)
	t.Logf("%d deliveries in %s, %d failures", n, time.Since(began), failures)

	mu.Lock()
	defer mu.Unlock()
	if wrong > 0 || failures < n/20 {
		t.Errorf("%d out of order; %d failures", wrong, failures)
	}
	if got := len(r.calls()); got != n+failures {
		t.Errorf("%d calls for %d deliveries and %d failures", got, n, failures)
	}
	if n := b.count(t, `SELECT count(*) FROM webhook_deliveries WHERE state <> 'delivered'`); n > 0 {
		t.Errorf("%d were not delivered", n)
	}
}

// TestThroughput measures; it asserts only when asked for a whole measurement.
func TestThroughput(t *testing.T) {
	n := deliveriesWanted(t)
	quiet := func(hangs int) time.Duration {
		b := newBench(t)
		release := make(chan struct{})
		for range hangs {
			s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
			t.Cleanup(s.Close)
			t.Cleanup(sync.OnceFunc(func() { close(release) }))
			b.endpoint(t, s.URL, "payment.declined")
		}
		s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		t.Cleanup(s.Close)
		b.endpoint(t, s.URL, "payment.completed")
		b.fill(t, n)
		if hangs > 0 {
			b.exec(t, `INSERT INTO webhook_deliveries (endpoint_id, tenant_id, event_id, event_type, subject, body)
				SELECT e.id, e.tenant_id, gen_random_uuid(), 'payment.declined', i::text, '{}'
				FROM webhook_endpoints e, generate_series(1, 1000) i WHERE e.event_types = '{payment.declined}'`)
		}
		b.exec(t, `VACUUM ANALYZE webhook_deliveries`)
		began := time.Now()
		stop := b.run(t, &webhooks.Sender{Timeout: 3 * time.Second})
		for b.count(t, `SELECT count(*) FROM webhook_deliveries WHERE state = 'pending' AND event_type = 'payment.completed'`) > 0 {
			select {
			case <-t.Context().Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
		took := time.Since(began)
		stop()
		return took
	}
	alone, beside := quiet(0), quiet(1)
	t.Logf("%d deliveries: %s (%.0f/s); beside an endpoint that hangs: %s (%+.1f %%)", n,
		alone, float64(n)/alone.Seconds(), beside, 100*(beside.Seconds()/alone.Seconds()-1))
	if strings.TrimSpace(os.Getenv("WEBHOOKS_LOAD")) == "" {
		return
	}
	if alone.Seconds() > float64(n)/1000 || beside.Seconds() > 1.05*alone.Seconds() {
		t.Error("too slow")
	}
}
