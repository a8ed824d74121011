package postgres_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/oncepay/oncepay/internal/postgres"
)

func TestWarnPlainText(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"postgres://u:hunter2@db.example/x":                                      "db.example",
		"postgres://u:hunter2@db.example/x?sslmode=prefer":                       "db.example",
		"postgres://u:hunter2@db.example/x?sslmode=allow":                        "db.example",
		"postgres://u:hunter2@db.example/x?sslmode=disable":                      "db.example",
		"postgres://u:hunter2@10.0.0.5/x":                                        "10.0.0.5",
		"postgres://u:hunter2@localhost,db.example/x":                            "db.example",
		"postgres://u:hunter2@db.example/x?sslmode=require":                      "",
		"postgres://u:hunter2@db.example/x?sslmode=verify-full":                  "",
		"postgres://u:hunter2@localhost/x":                                       "",
		"postgres://u:hunter2@127.0.0.2/x?sslmode=disable":                       "",
		"postgres://u:hunter2@[::1]/x":                                           "",
		"postgres:///x?host=/var/run/postgresql&user=u&password=hunter2":         "",
		"postgres://u:hunter2@db.example,/x?host=/var/run/postgresql,db.example": "db.example",
	} {
		var out bytes.Buffer
		postgres.WarnPlainText(t.Context(), slog.New(slog.NewTextHandler(&out, nil)), "DATABASE_URL", url)
		got := out.String()
		warned := strings.Contains(got, "level=WARN") && strings.Contains(got, "variable=DATABASE_URL host="+want+"\n")
		if warned != (want != "") || want == "" && got != "" || strings.Contains(got, "hunter2") {
			t.Errorf("%s: %q, want a warning of %q", url, got, want)
		}
	}
}
