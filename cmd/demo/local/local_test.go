package local

import (
	"net/http"
	"testing"
)

func TestRestartKeepsAddresses(t *testing.T) {
	t.Parallel()
	l := &Service{Dir: t.TempDir(), Say: t.Logf}
	defer l.Close()
	if err := l.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	url, admin := l.URL(), l.of("api")[0].Admin()
	if err := l.Strike(t.Context(), "api", false); err != nil {
		t.Fatal(err)
	}
	if err := l.Start(t.Context(), "api"); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{url + "/livez", "http://" + admin + "/metrics"} {
		response, err := http.Get(address)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", address, response.Status)
		}
	}
	select {
	case err := <-l.Failed():
		t.Errorf("a killed program counts as failed: %v", err)
	default:
	}
}
