package webhooks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/oncepay/oncepay/internal/testenv"
)

// The vector of the Standard Webhooks libraries: the same in each of their languages.
const (
	vectorID        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	vectorSecret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	vectorBody      = `{"test": 2432232314}`
	vectorSignature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
)

var vectorTime = time.Unix(1614265330, 0)

func TestSignatureIsThatOfTheStandard(t *testing.T) {
	t.Parallel()
	h := http.Header{}
	d := &delivery{event: vectorID, body: []byte(vectorBody), secrets: []string{vectorSecret}}
	if err := sign(h, d, vectorTime); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"webhook-id": vectorID, "webhook-timestamp": "1614265330", "webhook-signature": vectorSignature,
	} {
		if got := h.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestTwoSecretsGiveTwoSignatures(t *testing.T) {
	t.Parallel()
	h, secrets := http.Header{}, []string{newSecret(), vectorSecret}
	if err := sign(h, &delivery{event: vectorID, body: []byte(vectorBody), secrets: secrets}, time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, secret := range secrets {
		verifier, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			t.Fatal(err)
		}
		if err := verifier.Verify([]byte(vectorBody), h); err != nil {
			t.Errorf("%s: %v", h.Get("webhook-signature"), err)
		}
	}
	err := sign(h, &delivery{secrets: []string{"whsec_hunter2!"}}, time.Now())
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a malformed secret: %v", err)
	}
}

// forbidden are hosts that no call may reach, each with why.
var forbidden = map[string]string{
	"127.0.0.1": "loopback", "127.9.9.9": "loopback", "0.0.0.0": "unspecified", "10.0.0.1": "private", "172.16.0.1": "private",
	"172.31.255.255": "private", "192.168.1.1": "private", "100.64.0.1": "carrier's NAT", "169.254.169.254": "metadata",
	"100.100.100.200": "metadata at Alibaba", "168.63.129.16": "Azure", "192.0.0.192": "metadata at Oracle", "224.0.0.1": "multicast",
	"255.255.255.255": "broadcast", "240.0.0.1": "reserved", "198.18.0.1": "benchmarks", "192.0.2.1": "documentation", "192.88.99.1": "6to4 relay",
	"[::1]": "loopback", "[::]": "unspecified", "[fe80::1]": "link-local", "[fc00::1]": "unique local", "[fd00:ec2::254]": "metadata",
	"[ff02::1]": "multicast", "[::ffff:127.0.0.1]": "mapped", "[::ffff:10.0.0.1]": "mapped", "[::ffff:a9fe:a9fe]": "mapped metadata",
	"[::127.0.0.1]": "compatible", "[64:ff9b::7f00:1]": "NAT64", "[64:ff9b:1::a00:1]": "local NAT64", "[2002:7f00:1::]": "6to4",
	"[2001:0:7f00:1::]": "Teredo", "[2001:db8::1]": "documentation", "[3fff::1]": "documentation", "[100::1]": "discard", "[5f00::1]": "segments",
	"[fec0::1]": "site-local",
}

// odd are hosts that some programs read as an address and others as a name.
var odd = []string{
	"2130706433", "0x7f000001", "017700000001", "127.1", "0177.0.0.1", "0x7f.0.0.1", "127.0.0.1.", "127.0.0.01", "1.2.3", "[fe80::1%25eth0]",
	"exa mple.com", "exämple.com", "①②⑦.0.0.1", "-a.example", "a..example", "",
}

func TestForbiddenAddressesAreRefused(t *testing.T) {
	t.Parallel()
	client := newClient(nil, nil, 1)
	for host, why := range forbidden {
		if err := CheckURL("https://"+host+"/", nil); err == nil {
			t.Errorf("%s (%s) passes as a URL", host, why)
		}
		for _, scheme := range []string{"http", "https"} {
			d := &delivery{url: scheme + "://" + host + ":1/", secrets: []string{vectorSecret}}
			status, err := call(t.Context(), client, d)
			if !errors.Is(err, ErrAddress) || reason(status, err) != "the address is not allowed" {
				t.Errorf("%s://%s (%s): %v", scheme, host, why, err)
			}
		}
	}
}

func TestOddHostsAreRefused(t *testing.T) {
	t.Parallel()
	client := newClient(nil, nil, 1)
	for _, host := range odd {
		if err := CheckURL("https://"+host+"/", nil); err == nil {
			t.Errorf("%q passes as a URL", host)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		// Whether the resolver takes it for an address or knows no such name.
		if status, err := call(ctx, client, &delivery{url: "https://" + host + ":1/", secrets: []string{vectorSecret}}); err == nil {
			t.Errorf("%q answered %d", host, status)
		}
		cancel()
	}
}

func TestPublicAddresses(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"1.1.1.1", "8.8.8.8", "::ffff:8.8.8.8", "2606:4700:4700::1111", "2a00:1450:4001::1", "172.32.0.1", "100.128.0.1"} {
		if !isPublic(netip.MustParseAddr(address)) {
			t.Errorf("%s is not public", address)
		}
	}
}

func TestURLs(t *testing.T) {
	t.Parallel()
	allow := prefixes("127.0.0.0/8")
	for raw, want := range map[string][2]bool{ // without and with allowed addresses
		"https://example.com/hooks?x=1": {true, true}, "https://example.com:8443": {true, true}, "https://EXAMPLE.com./": {true, true},
		"https://8.8.8.8/": {true, true}, "https://[2606:4700::1111]/": {true, true}, "https://127.0.0.1/": {false, true},
		"http://example.com/": {false, true}, "http://127.0.0.1:8090/": {false, true}, "http://8.8.8.8/": {false, false},
		"https://u:p@example.com/": {false, false}, "https://example.com/#a": {false, false}, "https://example.com/#": {false, false},
		"ftp://example.com/": {false, false}, "file:///etc/passwd": {false, false}, "//example.com/": {false, false}, "example.com": {false, false},
		"https:///": {false, false}, "https://example.com/\n": {false, false}, "https://example.com/ä": {false, false},
		"https://" + strings.Repeat("a", 2000) + ".com/": {false, false}, "https://" + strings.Repeat("a.", 127) + "com/": {false, false},
	} {
		for i, allow := range [][]netip.Prefix{nil, allow} {
			if err := CheckURL(raw, allow); (err == nil) != want[i] {
				t.Errorf("%q, allowed %v: %v", raw, allow, err)
			}
		}
	}
}

// nameserver answers each question for an IPv4 address with the next of addresses, the last one again and again.
func nameserver(t *testing.T, addresses ...string) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			end := 12 // of the question: name, type, class
			for buf[end] != 0 {
				end += int(buf[end]) + 1
			}
			end += 5
			answer := append([]byte(nil), buf[:min(n, end)]...)
			copy(answer[2:], []byte{0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}) // a response with one question
			if answer[end-3] == 1 {                                      // A, not AAAA
				answer[7] = 1
				ip := netip.MustParseAddr(addresses[0]).As4()
				answer = append(append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4), ip[:]...)
				if len(addresses) > 1 {
					addresses = addresses[1:]
				}
			}
			_, _ = conn.WriteTo(answer, from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// TestNameThatChanges: a name is public when it is looked up, and private when the call is made. The address that is connected to is the
// one that is checked.
func TestNameThatChanges(t *testing.T) {
	t.Parallel()
	called := false
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called = true }))
	defer s.Close()
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	resolver := nameserver(t, "8.8.8.8", "127.0.0.1")

	if found, err := resolver.LookupHost(t.Context(), "rebind.example"); err != nil || len(found) != 1 || found[0] != "8.8.8.8" {
		t.Fatalf("the first look-up: %v, %v", found, err)
	}
	for _, scheme := range []string{"http", "https"} {
		d := &delivery{url: scheme + "://rebind.example:" + port + "/", secrets: []string{vectorSecret}}
		if _, err := call(t.Context(), newClient(nil, resolver, 1), d); !errors.Is(err, ErrAddress) || called {
			t.Errorf("%s: %v, called: %t", scheme, err, called)
		}
	}

	// What is allowed is called by the same name.
	d := &delivery{url: "http://rebind.example:" + port + "/", secrets: []string{vectorSecret}}
	if status, err := call(t.Context(), newClient(prefixes("127.0.0.0/8"), resolver, 1), d); status != 200 || !called {
		t.Errorf("allowed: %d, %v", status, err)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	followed := false
	target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed = true }))
	defer target.Close()
	for _, code := range []int{301, 302, 303, 307, 308} {
		s := httptest.NewServer(http.RedirectHandler(target.URL, code))
		d := &delivery{url: s.URL, secrets: []string{vectorSecret}}
		status, err := call(t.Context(), newClient(prefixes("127.0.0.0/8"), nil, 1), d)
		if status != code || err != nil || followed {
			t.Errorf("%d: %d, %v, followed: %t", code, status, err, followed)
		}
		s.Close()
	}
}

// TestNoProxy: one would resolve names and connect in our place.
func TestNoProxy(t *testing.T) {
	t.Parallel()
	for scheme, transport := range newClient(nil, nil, 1).Transport.(schemes) {
		if transport.Proxy != nil {
			t.Errorf("%s uses a proxy", scheme)
		}
	}
}

func TestLargeAnswersAreCutOff(t *testing.T) {
	t.Parallel()
	wrote := make(chan int, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n, block := 0, make([]byte, 64<<10)
		for range 1000 {
			m, err := w.Write(block)
			if n += m; err != nil {
				break
			}
		}
		wrote <- n
	}))
	defer s.Close()
	status, err := call(t.Context(), newClient(prefixes("127.0.0.0/8"), nil, 1), &delivery{url: s.URL, secrets: []string{vectorSecret}})
	if status != 200 || err != nil {
		t.Errorf("%d, %v", status, err)
	}
	if n := <-wrote; n > 32<<20 {
		t.Errorf("%d bytes were read", n)
	}
}

func TestScheduleTakesThreeDays(t *testing.T) {
	t.Parallel()
	for tries, want := range []time.Duration{
		5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 10 * time.Hour, 10 * time.Hour,
	} {
		for range 1000 {
			if d := pause(Schedule, tries); d < want*9/10 || d > want*11/10+1 {
				t.Errorf("after %d failures: %s, want about %s", tries+1, d, want)
			}
		}
	}
}

func TestLanes(t *testing.T) {
	t.Parallel()
	l := newLanes(4, 26)
	a, b := [16]byte{1}, [16]byte{2}
	rooms := func() map[[16]byte]int {
		got := map[[16]byte]int{}
		ids, rooms, _, _ := l.room()
		for i, id := range ids {
			got[id] = rooms[i]
		}
		return got
	}
	for range 4 {
		l.begin(a)
	}
	l.begin(b)
	if got := rooms(); got[a] != 0 || got[b] != 3 {
		t.Errorf("room %v", got)
	}
	if _, _, others, all := l.room(); others != 4 || all != 11 {
		t.Errorf("room for %d of another, %d in all", others, all)
	}
	for range 4 {
		l.end(a, false) // no answer: 4, 2, 1
	}
	l.end(b, true)
	if got := rooms(); got[a] != 1 || len(got) != 1 {
		t.Errorf("room %v after calls that hang", got)
	}
	for range 3 {
		l.begin(a)
		l.end(a, true)
	}
	if got := rooms(); len(got) != 0 {
		t.Errorf("room %v after answers", got)
	}
}

// TestSlowEndpointsLeaveRoom: many endpoints have all the calls that they are allowed, and answer each at the last moment. There is
// room for one more endpoint all the same.
func TestSlowEndpointsLeaveRoom(t *testing.T) {
	t.Parallel()
	for _, slow := range []byte{10, 40, 200} {
		l := newLanes(32, 1000)
		for range 50 {
			for e := range slow {
				id := [16]byte{e, 1}
				ids, rooms, others, all := l.room()
				room := others
				if i := slices.Index(ids, id); i >= 0 {
					room = rooms[i]
				}
				for range min(room, all) {
					l.begin(id)
				}
				if l.of[id] != nil && l.of[id].inFlight > 0 {
					l.end(id, true)
				}
			}
		}
		if _, _, others, all := l.room(); others < 2 || all < others {
			t.Errorf("%d slow endpoints leave %d calls in all, %d for another endpoint", slow, all, others)
		}
	}
}

// TestDeadConnectionIsLeft: the other end of an HTTP/2 connection is gone without a word, as a machine that lost its power. Calls soon use
// another one.
func TestDeadConnectionIsLeft(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(map[int]int{1: 400, 2: 200}[r.ProtoMajor])
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)

	// What stands between passes the first connection's bytes until it is dead.
	between, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { between.Close() })
	var dead atomic.Bool
	go func() {
		for n := 0; ; n++ {
			near, err := between.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", s.Listener.Addr().String())
			if err != nil {
				near.Close()
				continue
			}
			t.Cleanup(func() { near.Close(); far.Close() })
			pass := func(to, from net.Conn) {
				buf := make([]byte, 4096)
				for {
					m, err := from.Read(buf)
					if err != nil {
						to.Close()
						return
					}
					if n > 0 || !dead.Load() {
						_, _ = to.Write(buf[:m])
					}
				}
			}
			go pass(near, far)
			go pass(far, near)
		}
	}()

	client := newClient(prefixes("127.0.0.0/8"), nil, 1)
	t.Cleanup(client.CloseIdleConnections)
	client.Transport.(schemes)["https"].TLSClientConfig = s.Client().Transport.(*http.Transport).TLSClientConfig
	d := &delivery{url: "https://" + between.Addr().String(), secrets: []string{vectorSecret}}
	try := func(limit time.Duration) (int, error) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return call(ctx, client, d)
	}
	if status, err := try(10 * time.Second); status != 200 {
		t.Fatalf("%d, %v", status, err)
	}
	dead.Store(true)
	testenv.Eventually(t, 25*time.Second, func() error {
		status, err := try(2 * time.Second)
		if status != 200 {
			return fmt.Errorf("%d, %w", status, err)
		}
		return nil
	})
}
