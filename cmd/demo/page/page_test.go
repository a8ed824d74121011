package page

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func listen(t *testing.T) *Server {
	t.Helper()
	s, err := Listen("127.0.0.1:0", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// send sends a request with these headers, Host among them.
func send(t *testing.T, method, url string, headers map[string]string) (int, http.Header, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range headers {
		r.Header.Set(name, value)
	}
	if host := r.Header.Get("Host"); host != "" {
		r.Host = host
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(body)
}

const asJSON = "application/json"

func TestStrangersArePutOff(t *testing.T) {
	t.Parallel()
	s := listen(t)
	var pressed atomic.Int64
	s.SetStage(&Stage{Act: func(context.Context, string) (string, error) {
		pressed.Add(1)
		return "done", nil
	}})

	host := strings.TrimSuffix(strings.TrimPrefix(s.URL(), "http://"), "/")
	_, port, _ := strings.Cut(host, ":")
	for name, c := range map[string]struct {
		headers map[string]string
		want    int
	}{
		"our page":                 {map[string]string{"Content-Type": asJSON, "Origin": "http://" + host}, 200},
		"no page":                  {map[string]string{"Content-Type": asJSON}, 200},
		"localhost":                {map[string]string{"Content-Type": asJSON, "Host": "localhost:" + port}, 200},
		"a rebound name":           {map[string]string{"Content-Type": asJSON, "Host": "evil.example:" + port}, 403},
		"our address without port": {map[string]string{"Content-Type": asJSON, "Host": "127.0.0.1"}, 403},
		"another site":             {map[string]string{"Content-Type": asJSON, "Origin": "http://evil.example"}, 403},
		"another port":             {map[string]string{"Content-Type": asJSON, "Origin": "http://127.0.0.1:1"}, 403},
		"https":                    {map[string]string{"Content-Type": asJSON, "Origin": "https://" + host}, 403},
		"a sandbox":                {map[string]string{"Content-Type": asJSON, "Origin": "null"}, 403},
		"a cross-site fetch":       {map[string]string{"Content-Type": asJSON, "Sec-Fetch-Site": "cross-site"}, 403},
		"a form":                   {map[string]string{"Content-Type": "text/plain"}, 415},
		"no content type":          {nil, 415},
	} {
		before := pressed.Load()
		status, _, body := send(t, http.MethodPost, s.URL()+"actions/pay", c.headers)
		if status != c.want || (pressed.Load() > before) != (c.want == 200) {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}

	for _, path := range []string{"", "events", "tour"} {
		status, _, _ := send(t, http.MethodGet, s.URL()+path, map[string]string{"Host": "evil.example"})
		if status != http.StatusForbidden {
			t.Errorf("/%s for another host: %d", path, status)
		}
	}
}

func TestAssetsComeWithTheirPolicy(t *testing.T) {
	t.Parallel()
	s := listen(t)
	for path, kind := range map[string]string{"": "text/html", "page.css": "text/css", "page.js": "text/javascript"} {
		status, h, body := send(t, http.MethodGet, s.URL()+path, nil)
		if status != 200 || body == "" || !strings.HasPrefix(h.Get("Content-Type"), kind) ||
			!strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'self'") {
			t.Errorf("/%s: %d %v", path, status, h)
		}
	}
}

func TestErrorsHaveTheirStatus(t *testing.T) {
	t.Parallel()
	s := listen(t)
	pay := func() (int, string) {
		status, _, body := send(t, http.MethodPost, s.URL()+"actions/kill/api", map[string]string{"Content-Type": asJSON})
		return status, body
	}
	if status, body := pay(); status != http.StatusConflict {
		t.Errorf("before there is a stage: %d %s", status, body)
	}
	for status, err := range map[int]error{404: ErrUnknown, 409: Refused("api is down"), 500: errors.New("oops")} {
		s.SetStage(&Stage{Act: func(_ context.Context, action string) (string, error) {
			if action != "kill/api" {
				t.Errorf("action %q", action)
			}
			return "", err
		}})
		if got, body := pay(); got != status || body != `{"error":"`+err.Error()+"\"}\n" {
			t.Errorf("%v: %d %s", err, got, body)
		}
	}
}

// TestOnlyListenersCost: the state is made while somebody listens, once for all of them.
func TestOnlyListenersCost(t *testing.T) {
	t.Parallel()
	s := listen(t)
	var made atomic.Int64
	s.SetStage(&Stage{State: func(ctx context.Context) State {
		made.Add(1)
		return Blank(float64(made.Load()))
	}})
	s.Add(Fault, "the first")
	s.Add(Recovery, "the second")

	listener := func() (next func(event string) string, leave func()) {
		ctx, leave := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+"events", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { response.Body.Close() })
		lines := bufio.NewScanner(response.Body)
		lines.Buffer(nil, 1<<20)
		return func(event string) string {
			for lines.Scan() {
				if lines.Text() == "event: "+event && lines.Scan() {
					return strings.TrimPrefix(lines.Text(), "data: ")
				}
			}
			t.Fatalf("no %s: %v", event, lines.Err())
			return ""
		}, leave
	}

	if made.Load() != 0 {
		t.Error("a state was made for nobody")
	}
	began := time.Now()
	first, leaveFirst := listener()
	second, leaveSecond := listener()
	var l line
	for _, want := range []string{"the first", "the second"} {
		if err := json.Unmarshal([]byte(first("timeline")), &l); err != nil || l.Text != want {
			t.Errorf("%+v, %v", l, err)
		}
	}
	if first("state") == "" || second("state") == "" || second("state") == "" {
		t.Error("an empty state")
	}
	if most := 3 + int64(time.Since(began)/stateEvery); int64(made.Load()) > most {
		t.Errorf("%d states for two listeners", made.Load())
	}

	s.Add(Proved, "the third")
	for l.Text != "the third" {
		if err := json.Unmarshal([]byte(first("timeline")), &l); err != nil {
			t.Fatal(err)
		}
	}

	leaveFirst()
	leaveSecond()
	s.hub.wait()
}

func TestOtherMachinesCannotReachIt(t *testing.T) {
	t.Parallel()
	if s, err := Listen("0.0.0.0:0", time.Now()); err == nil {
		s.Close()
		t.Error("it listens on all addresses")
	}
}
