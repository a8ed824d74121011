package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// stub answers on one side of a pipe; answer is called for each request and may take its time.
func stub(answer func(n int, key string) (status int, replayed string)) func() (net.Conn, error) {
	var n atomic.Int64
	return func() (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			for in := bufio.NewReader(theirs); ; {
				r, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				status, replayed := answer(int(n.Add(1)), r.Header.Get("Idempotency-Key"))
				if status == 0 {
					return
				}
				if _, err := fmt.Fprintf(theirs, "HTTP/1.1 %d X\r\nContent-Length: 2\r\nIdempotent-Replayed: %s\r\n\r\n{}", status, replayed); err != nil {
					return
				}
			}
		}()
		return ours, nil
	}
}

func timer(d time.Duration) { <-time.After(d) }

func quiet(func()) {}

func (r *result) answered() int64 { return r.latencies.TotalCount() }

func (r *result) first() int { return len(r.keys) }

func testLoad(t *testing.T, answer func(n int, key string) (int, string)) load {
	t.Helper()
	return load{dial: stub(answer), payments: newPayments(someAccounts(3), false), connections: 1, window: 10 * time.Second, pause: timer}
}

// A generator that waits for the answer before it sends the next request would see one slow request of a thousand here.
func TestStallShowsInEveryRequestDueMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := testLoad(t, func(n int, _ string) (int, string) {
			if n == 300 {
				timer(2 * time.Second)
			}
			return 201, "false"
		})
		l.rate = 100
		got, err := l.run(t.Context(), quiet)
		if err != nil || got.err() != nil {
			t.Fatal(err, got.err())
		}
		if got.answered() != 1000 || got.first() != 1000 {
			t.Errorf("%d and %d of 1000 requests that were due", got.answered(), got.first())
		}
		// 200 of 1,000 were due in the stall, and waited from 2 s down to 0: evenly, so half of them a second and more.
		for percent, want := range map[float64]float64{75: 0, 90: 1000, 100: 2000} {
			if ms := got.latencies.Millis(percent); ms < want-25 || ms > want+25 {
				t.Errorf("%g %% of the requests took at most %.1f ms, want some %.0f", percent, ms, want)
			}
		}
	})
}

func TestClosedLoopSendsWhenAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := testLoad(t, func(int, string) (int, string) {
			timer(10 * time.Millisecond)
			return 201, "false"
		})
		l.connections, l.warmup = 5, 2*time.Second
		var begun, ended time.Time
		start := time.Now()
		got, err := l.run(t.Context(), func(wait func()) {
			begun = time.Now()
			wait()
			ended = time.Now()
		})
		if err != nil || got.err() != nil {
			t.Fatal(err, got.err())
		}
		if got.answered() < 4990 || got.answered() > 5000 || got.first() < int(got.answered())+990 {
			t.Errorf("%d requests in the window, %d in all; want 5000 and 6000", got.answered(), got.first())
		}
		if ms := got.latencies.Millis(50); ms < 9.9 || ms > 10.1 {
			t.Errorf("p50 is %.2f ms, want 10", ms)
		}
		if begun.Sub(start) != l.warmup || ended.Sub(begun) != l.window {
			t.Errorf("the window was from %s to %s", begun.Sub(start), ended.Sub(start))
		}
	})
}

func TestUnexpectedAnswerIsCountedAndNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status   int
		replayed string
		want     string
	}{
		"refused":           {503, "false", "{status:503 replayed:false}"},
		"replay of nothing": {201, "true", `{status:201 replayed:true}, expected {status:201 replayed:false}`},
		"gone":              {0, "", "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := testLoad(t, func(n int, _ string) (int, string) {
					timer(time.Second)
					if n == 3 {
						return c.status, c.replayed
					}
					return 201, "false"
				})
				got, err := l.run(t.Context(), quiet)
				if err != nil {
					t.Fatal(err)
				}
				if got.err() == nil || !strings.Contains(got.err().Error(), "1 × "+c.want) {
					t.Errorf("%v, want %s", got.err(), c.want)
				}
			})
		})
	}
}

// A server that says nothing at all must not hold up the benchmark.
func TestSilentServerIsAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := testLoad(t, func(int, string) (int, string) { timer(time.Hour); return 0, "" })
		l.rate = 10
		start := time.Now()
		got, err := l.run(t.Context(), quiet)
		if took := time.Since(start); took > l.window+patience {
			t.Errorf("it waited for %s", took)
		}
		if err != nil || got.err() == nil || got.answered() != 0 {
			t.Errorf("%v, %v, %d answered", err, got.err(), got.answered())
		}
		timer(time.Hour) // until the stub is gone, too
	})
}

func TestReplayRepeatsAnsweredKeysOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		seen := map[string]bool{}
		l := testLoad(t, func(_ int, key string) (int, string) {
			timer(time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			if seen[key] {
				return 201, "true"
			}
			seen[key] = true
			return 201, "false"
		})
		l.connections = 2
		got, err := l.run(t.Context(), quiet)
		if err != nil || got.err() != nil {
			t.Fatal(err, got.err())
		}
		keys := len(seen)
		if got.first() != keys {
			t.Errorf("%d first answers to %d keys", got.first(), keys)
		}

		l.replay = got.keys
		got, err = l.run(t.Context(), quiet)
		if err != nil || got.err() != nil || got.first() != 0 || got.answered() == 0 || len(seen) != keys {
			t.Errorf("replays: %v, %v, %d first answers, %d keys", err, got.err(), got.first(), len(seen)-keys)
		}
	})
}
