package process_test

import (
	"strings"
	"testing"

	"github.com/oncepay/oncepay/internal/process"
)

func TestStartRefusesALogItCannotRead(t *testing.T) {
	t.Parallel()
	for _, v := range []string{"LOG_LEVEL=warn", "LOG_LEVEL=error", "LOG_FORMAT=text"} {
		if _, err := process.Start(t.Context(), t.TempDir(), "api", "X=1", v); err == nil || !strings.Contains(err.Error(), v) {
			t.Errorf("%s: %v", v, err)
		}
	}
}
