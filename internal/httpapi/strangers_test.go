package httpapi_test

import (
	"bufio"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/groupcommit"
)

// invented is a token that nobody was given, with a right checksum.
func invented() string {
	const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	var b strings.Builder
	b.WriteString("oncepay_")
	for i := range 49 {
		if i == 16 {
			b.WriteByte('_')
			continue
		}
		b.WriteByte(base62[rand.IntN(62)])
	}
	sum, digits := crc32.ChecksumIEEE([]byte(b.String())), [6]byte{}
	for i := range digits {
		digits[5-i], sum = base62[sum%62], sum/62
	}
	return b.String() + string(digits[:])
}

// strangers sends requests with invented tokens over connections of their own, each as soon as the
// one before is answered, until stop is called, which returns how many were refused.
func strangers(t *testing.T, a *api, connections int) (stop func() int64) {
	t.Helper()
	var refused atomic.Int64
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for range connections {
		conn, err := net.Dial("tcp", a.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		all.Go(func() {
			answers := bufio.NewReader(conn)
			for ctx.Err() == nil {
				_, _ = fmt.Fprintf(conn, "GET /api/v1/payments HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", invented())
				response, err := http.ReadResponse(answers, nil)
				if err != nil {
					break
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
				if response.StatusCode != http.StatusUnauthorized {
					t.Errorf("a stranger got %d", response.StatusCode)
				}
				refused.Add(1)
			}
			if ctx.Err() == nil {
				t.Error("a stranger's connection was cut")
			}
		})
	}
	return func() int64 {
		cancel()
		all.Wait()
		return refused.Load()
	}
}

// STRANGERS is for how long to measure, for example 10s. It needs a machine with nothing else to
// do, and prints the p99 of 100 payments a second alone and beside strangers on 512 connections.
func TestMeasureUnknownTokens(t *testing.T) {
	long, err := time.ParseDuration(os.Getenv("STRANGERS"))
	if err != nil {
		t.Skip("STRANGERS is not set to a duration")
	}
	g := startGrouped(t, groupcommit.Options{Committers: 2}, nil)
	from, to := g.caller.funded(t, 1_000_000), g.caller.account(t)
	measure := func() time.Duration {
		var mu sync.Mutex
		var took []time.Duration
		var all sync.WaitGroup
		ticks := time.NewTicker(10 * time.Millisecond)
		defer ticks.Stop()
		for until := time.Now().Add(long); time.Now().Before(until); {
			due := <-ticks.C
			all.Go(func() {
				g.caller.pay(t, from, to, 1)
				mu.Lock()
				defer mu.Unlock()
				took = append(took, time.Since(due))
			})
		}
		all.Wait()
		slices.Sort(took)
		return took[len(took)*99/100]
	}

	for range 3 {
		alone := measure()
		stop := strangers(t, g.api, 512)
		beside := measure()
		t.Logf("p99 alone %s, beside %.0f invented tokens/s %s (%.1f times)",
			alone, float64(stop())/long.Seconds(), beside, float64(beside)/float64(alone))
	}
}
