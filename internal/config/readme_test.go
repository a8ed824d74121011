package config_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/oncepay/oncepay/internal/config"
)

var update = flag.Bool("update", false, "write the table of variables into the README")

const (
	readme = "../../README.md"
	begin  = "<!-- configuration: written by `go test ./internal/config -update`, do not edit -->\n"
	end    = "<!-- end of configuration -->"
)

func TestREADMETableIsCurrent(t *testing.T) {
	b, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(b), begin)
	table, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatal("the README has no place for the table")
	}
	if *update {
		if err := os.WriteFile(readme, []byte(before+begin+config.Table()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if table != config.Table() {
		t.Error("the table in the README is not today's: go test ./internal/config -update")
	}
}
