package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestDocumentedLife runs the README's life of one payment as it is written there, the account
// aside. Behind each step it names the event that the step leads to.
func TestDocumentedLife(t *testing.T) {
	t.Parallel()
	c := newChain(t)
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, script, found := strings.Cut(string(page), "\n\n    api=")
	script, _, ends := strings.Cut(script, "\n\n")
	if !found || !ends {
		t.Fatal("the README has no life of one payment")
	}
	var named []string
	for _, m := range regexp.MustCompile(`(?m)  # ([a-z]+\.[a-z]+)$`).FindAllStringSubmatch(script, -1) {
		named = append(named, m[1])
	}
	var before int64
	if err := c.owner.QueryRow(t.Context(), `SELECT max(id) FROM outbox_events`).Scan(&before); err != nil {
		t.Fatal(err)
	}

	cmd := exec.CommandContext(t.Context(), "sh", "-euc", "api="+strings.Replace(script, "=ACCOUNT", "="+c.Accounts[0].ID.String(), 1))
	cmd.Env = []string{"PATH=/bin:/usr/bin", "ONCEPAY_TOKEN=" + c.Token, "ONCEPAY_URL=http://" + c.api.Addr}
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	rows, err := c.owner.Query(t.Context(), `SELECT event_type FROM outbox_events WHERE id > $1 ORDER BY id`, before)
	if err != nil {
		t.Fatal(err)
	}
	events, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(named) < 5 || !slices.Equal(events, named) {
		t.Errorf("%v, the events are\n%q, and README names\n%q", err, events, named)
	}

	var last struct {
		Captured int64 `json:"captured_minor"`
		Refunded int64 `json:"refunded_minor"`
		Version  int
		Refunds  []struct{ Status string }
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.Captured != 2000 || last.Refunded != 500 ||
		last.Version != 3 || len(last.Refunds) != 1 || last.Refunds[0].Status != "completed" {
		t.Errorf("%v, the last answer is\n%s", err, lines[len(lines)-1])
	}
}
