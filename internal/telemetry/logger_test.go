package telemetry_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/oncepay/oncepay/internal/telemetry"
)

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestTracedLinesCarryTraceIDs(t *testing.T) {
	t.Parallel()
	ctx := telemetry.FromHeaders(t.Context(), func(name string) string {
		return map[string]string{"traceparent": traceparent}[name]
	})
	var out bytes.Buffer
	log := telemetry.Logger(&out, slog.LevelInfo, "json").With("request_id", "r1")
	log.InfoContext(ctx, "payment stored", "amount_minor", 5)

	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatal(err)
	}
	if line["trace_id"] != "0af7651916cd43dd8448eb211c80319c" || line["span_id"] != "b7ad6b7169203331" || line["request_id"] != "r1" {
		t.Errorf("line = %v", line)
	}
}

func TestUntracedLineCarriesNoIDs(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	telemetry.Logger(&out, slog.LevelInfo, "text").InfoContext(t.Context(), "started")
	if got := out.String(); !strings.Contains(got, "msg=started") || strings.Contains(got, "trace_id") {
		t.Errorf("line = %s", got)
	}
}

func TestLoggerRespectsLevel(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	telemetry.Logger(&out, slog.LevelWarn, "json").InfoContext(t.Context(), "chatter")
	if out.Len() != 0 {
		t.Errorf("line = %s", out.String())
	}
}
