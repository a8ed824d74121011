package observe

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/testenv"
)

func TestPrometheusScrapesAndEvaluates(t *testing.T) {
	t.Parallel()
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, `answer{to="everything"} 42`)
	}))
	defer target.Close()
	p := Start(t, map[string]string{"api": strings.TrimPrefix(target.URL, "http://")},
		"groups: [{name: g, rules: [{record: half, expr: answer / 2}]}]")

	testenv.Eventually(t, 30*time.Second, func() error {
		got, err := p.Query("half")
		if err == nil && (len(got) != 1 || got[0].Value != 21 || got[0].Labels["job"] != "api" || got[0].Labels["to"] != "everything") {
			err = fmt.Errorf("half is %v", got)
		}
		return err
	})
	if got, err := p.Query("1 + 1"); err != nil || len(got) != 1 || got[0].Value != 2 {
		t.Errorf("1 + 1 is %v, %v", got, err)
	}
	if got, err := p.Query("nothing"); err != nil || len(got) != 0 {
		t.Errorf("nothing is %v, %v", got, err)
	}
	for _, wrong := range []string{"sum(", "answer[1m]"} {
		if got, err := p.Query(wrong); err == nil {
			t.Errorf("%s is %v", wrong, got)
		}
	}
}
