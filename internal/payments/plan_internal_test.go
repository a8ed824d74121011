package payments

import (
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"

	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/internal/testenv"
)

// TestEveryPlanGoesByAnIndexEvenOnAnEmptyDatabase: a plan is made once for a connection, and the tables grow behind it.
func TestEveryPlanGoesByAnIndexEvenOnAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	pool, err := postgres.Open(t.Context(), testenv.Database(t).URLAs("api_write"), "test", 1, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(t.Context(), `SET plan_cache_mode = force_generic_plan`); err != nil {
		t.Fatal(err)
	}
	for name, sql := range map[string]string{"lock_accounts": lockAccounts, "find_system_accounts": findSystemAccounts, "update_balances": updateBalances} {
		args := map[string]bool{}
		for _, arg := range regexp.MustCompile(`\$\d+`).FindAllString(sql, -1) {
			args[arg] = true
		}
		nulls := strings.TrimSuffix(strings.Repeat("NULL,", len(args)), ",")
		if _, err := pool.Exec(t.Context(), `PREPARE `+name+` AS `+sql); err != nil {
			t.Fatal(err)
		}
		rows, err := pool.Query(t.Context(), fmt.Sprintf(`EXPLAIN EXECUTE %s(%s)`, name, nulls))
		if err != nil {
			t.Fatal(err)
		}
		var plan []string
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				t.Fatal(err)
			}
			plan = append(plan, line)
		}
		text := strings.Join(plan, "\n")
		if rows.Err() != nil || strings.Contains(text, "Seq Scan") || !strings.Contains(text, "Nested Loop") {
			t.Errorf("%s: %v\n%s", name, rows.Err(), text)
		}
	}
}
