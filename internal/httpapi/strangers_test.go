package httpapi_test

import (
	"bufio"
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/groupcommit"
	"github.com/oncepay/oncepay/internal/httpapi"
)

// invented is a well-formed token that was never issued.
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

// TestStrangersOfAnotherProcess sends requests with invented tokens to STRANGERS_AT over connections of their own, each
// as soon as the one before is answered, until its input ends. Then it prints how many were refused.
func TestStrangersOfAnotherProcess(t *testing.T) {
	at := os.Getenv("STRANGERS_AT")
	if at == "" {
		t.Skip("TestMeasureUnknownTokens starts it")
	}
	var refused atomic.Int64
	for range 512 {
		conn, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			answers := bufio.NewReader(conn)
			for {
				_, _ = fmt.Fprintf(conn, "GET /api/v1/payments HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", invented())
				response, err := http.ReadResponse(answers, nil)
				if err != nil {
					t.Errorf("a stranger's connection was cut: %v", err)
					return
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
				if response.StatusCode != http.StatusUnauthorized {
					t.Errorf("a stranger got %d", response.StatusCode)
				}
				refused.Add(1)
			}
		}()
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	fmt.Println("refused", refused.Load())
	if t.Failed() {
		os.Exit(1)
	}
	os.Exit(0) // the connections are in use
}

// strangers starts them, in a process that yields to the service's, as if it were elsewhere. stop returns how many were
// refused.
func strangers(t *testing.T, a *api) (stop func() (refused int64)) {
	t.Helper()
	c := exec.Command("nice", "-n", "19", os.Args[0], "-test.run=^TestStrangersOfAnotherProcess$")
	c.Env = append(os.Environ(), "STRANGERS_AT="+a.Listener.Addr().String())
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	in, err := c.StdinPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() (refused int64) {
		_ = in.Close()
		err := c.Wait()
		if _, said, ok := strings.Cut(out.String(), "refused "); ok {
			_, _ = fmt.Sscan(said, &refused)
		}
		if err != nil || refused == 0 {
			t.Errorf("%v: %s", err, &out)
		}
		return refused
	}
}

// STRANGERS is for how long to measure, for example 10s. It needs a machine with nothing else to
// do, and prints the p99 of 100 payments a second alone and beside strangers on 512 connections.
func TestMeasureUnknownTokens(t *testing.T) {
	long, err := time.ParseDuration(os.Getenv("STRANGERS"))
	if err != nil {
		t.Skip("STRANGERS is not set to a duration")
	}
	g := startGrouped(t, groupcommit.Options{Committers: 2}, func(o *httpapi.Options) {
		door, err := pgxpool.NewWithConfig(t.Context(), o.Write.(*pgxpool.Pool).Config())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(door.Close)
		o.Credentials = credentials.NewVerifier(door, time.Now)
		o.Observe = nil // the tests' own keeps all that it is told
	})
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
		stop := strangers(t, g.api)
		beside := measure()
		t.Logf("p99 alone %s, beside %.0f invented tokens/s %s (%.1f times)",
			alone, float64(stop())/long.Seconds(), beside, float64(beside)/float64(alone))
	}
}
