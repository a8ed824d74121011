package telemetry_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/oncepay/oncepay/internal/telemetry"
)

// serve runs an Admin for the length of the test and returns its URL.
func serve(t *testing.T, ready func(context.Context) error) string {
	t.Helper()
	admin, err := telemetry.ListenAdmin("127.0.0.1:0", telemetry.NewRegistry(), ready)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- admin.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return "http://" + admin.Addr()
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func TestAdminServesUntilStopped(t *testing.T) {
	t.Parallel()
	url := serve(t, nil)
	if status, body := get(t, url+"/metrics"); status != 200 || !strings.Contains(body, "build_info{") ||
		!strings.Contains(body, "go_goroutines") || !strings.Contains(body, "process_open_fds") {
		t.Errorf("metrics: %d\n%s", status, body)
	}
	if status, _ := get(t, url+"/debug/pprof/"); status != 404 {
		t.Errorf("whoever may scrape may profile: %d", status)
	}
	if status, _ := get(t, url+"/readyz"); status != 404 {
		t.Errorf("readyz without a readiness check: %d", status)
	}
}

func TestReadyzFollowsItsCheckAndLivezDoesNot(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	url := serve(t, func(context.Context) error {
		if down.Load() {
			return errors.New("no database")
		}
		return nil
	})
	if status, _ := get(t, url+"/readyz"); status != 200 {
		t.Errorf("readyz: %d", status)
	}
	down.Store(true)
	if status, body := get(t, url+"/readyz"); status != 503 || !strings.Contains(body, "no database") {
		t.Errorf("readyz: %d %s", status, body)
	}
	if status, _ := get(t, url+"/livez"); status != 200 {
		t.Errorf("livez: %d", status)
	}
}

func TestListenAdminFailsOnAddressInUse(t *testing.T) {
	t.Parallel()
	taken := strings.TrimPrefix(serve(t, nil), "http://")
	_, err := telemetry.ListenAdmin(taken, telemetry.NewRegistry(), nil)
	if err == nil || !strings.Contains(err.Error(), "ADMIN_ADDR") || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("err = %v", err)
	}
}
