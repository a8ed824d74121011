package telemetry_test

import (
	"context"
	"strings"
	"testing"

	"github.com/oncepay/oncepay/internal/telemetry"
)

func TestPprofServesProfilesAndNothingElse(t *testing.T) {
	t.Parallel()
	profiles, err := telemetry.ListenPprof("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- profiles.Run(ctx) }()

	url := "http://" + profiles.Addr()
	if status, body := get(t, url+"/debug/pprof/goroutine?debug=1"); status != 200 || !strings.Contains(body, "goroutine profile") {
		t.Errorf("pprof: %d\n%s", status, body)
	}
	if status, _ := get(t, url+"/metrics"); status != 404 {
		t.Errorf("whoever may profile may scrape: %d", status)
	}
	if _, err := telemetry.ListenPprof(profiles.Addr()); err == nil || !strings.Contains(err.Error(), "PPROF_ADDR") {
		t.Errorf("an address in use: %v", err)
	}

	stop()
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
}

func TestPprofIsOffWithoutAddress(t *testing.T) {
	t.Parallel()
	profiles, err := telemetry.ListenPprof("")
	if err != nil {
		t.Fatal(err)
	}
	if addr := profiles.Addr(); addr != "" {
		t.Errorf("it listens on %s", addr)
	}
	if err := profiles.Run(t.Context()); err != nil {
		t.Error(err)
	}
}
