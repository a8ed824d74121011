package kafka

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestClientID(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{"": "oncepay-relay", "shop": "shop"} {
		client, err := Producer{Brokers: []string{"127.0.0.1:1"}, ClientID: given}.newClient()
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()

		if got := client.OptValue(kgo.ClientID); got != want {
			t.Errorf("given %q it is %v, want %q", given, got, want)
		}
	}
}
