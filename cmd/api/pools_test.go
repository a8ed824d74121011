package main

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/testenv"
)

func TestReadinessPingsOnceASecond(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	pools, err := openPools(t.Context(), config.API{
		DatabaseURL: db.URLAs("api_write"), DatabaseReadURL: db.URLAs("api_read"), DatabasePool: 1,
	}, slog.New(slog.DiscardHandler))
	defer pools.close()
	if err != nil {
		t.Fatal(err)
	}

	left, cancel := context.WithCancel(t.Context())
	cancel()
	began, before := time.Now(), pools.auth.Stat().AcquireCount()
	for range 1000 {
		if err := pools.ready(left); err != nil { // a disconnected caller does not affect others
			t.Fatal(err)
		}
	}
	pings := pools.auth.Stat().AcquireCount() - before
	if most := 1 + int64(time.Since(began)/readinessAge); pings < 1 || pings > most {
		t.Errorf("%d pings for 1000 calls, want 1 to %d", pings, most)
	}

	// A standby for reads that is away stops GETs. It must not stop payments.
	pools.readiness.until = time.Time{}
	pools.read.Close()
	if err := pools.ready(t.Context()); err != nil {
		t.Errorf("without the database for reads: %v", err)
	}

	pools.readiness.until = time.Time{}
	pools.auth.Close()
	for range 2 {
		if pools.ready(t.Context()) == nil {
			t.Error("ready without its database")
		}
	}
}

// A server that takes no writes is taken for a demoted primary, unless the URL says that it may be a
// standby.
func TestStandbyForReadsIsSaidToBeOne(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	standby := db.URLAs("api_read") + "&default_transaction_read_only=on"
	open := func(read string) error {
		pools, err := openPools(t.Context(), config.API{
			DatabaseURL: db.URLAs("api_write"), DatabaseReadURL: read, DatabasePool: 1,
		}, slog.New(slog.DiscardHandler))
		pools.close()
		return err
	}
	if err := open(standby); err == nil || !strings.Contains(err.Error(), "read only connection") {
		t.Errorf("a server without writes: %v", err)
	}
	if err := open(standby + "&target_session_attrs=prefer-standby"); err != nil {
		t.Errorf("a standby: %v", err)
	}
}
