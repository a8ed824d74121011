// Package structure holds tests of the module's shape: who may import whom, and that the packages that are made to be
// copied can be.
package structure

import (
	"encoding/json"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/oncepay/oncepay/"

// rule says what a package may import, tests aside.
type rule struct {
	inside  []string // of this module
	outside []string // modules beyond the standard library, by prefix; nil: as needed
}

const (
	pgx  = "github.com/jackc/pgx/v5"
	kgo  = "github.com/twmb/franz-go"
	uuid = "github.com/google/uuid"
	otel = "go.opentelemetry.io"
	prom = "github.com/prometheus"
	cli  = "github.com/spf13"

	hooks = "github.com/standard-webhooks/standard-webhooks/libraries"
)

// terminal is what draws on one. One program does.
var terminal = []string{"charm.land", "github.com/charmbracelet"}

// table says what each package may import; .golangci.yaml repeats it for the editor. A package that is not in it has no
// place yet.
var table = map[string]rule{
	"internal/idempotency": {nil, []string{pgx, uuid}},
	"internal/outbox":      {nil, []string{pgx, uuid}},
	"internal/relay":       {nil, []string{pgx, uuid}},
	"internal/relay/kafka": {[]string{"internal/relay"}, []string{uuid, kgo}},
	"internal/inbox":       {nil, []string{pgx, uuid, kgo}},
	"internal/credentials": {nil, []string{pgx, uuid}},
	"internal/payments":    {[]string{"internal/idempotency", "internal/outbox"}, []string{pgx, uuid}},
	"internal/psp":         {[]string{"internal/payments", "internal/groupcommit"}, []string{"github.com/sony/gobreaker/v2"}},
	"internal/webhooks":    {[]string{"internal/outbox"}, []string{pgx, uuid, hooks}},
	"internal/statements":  {[]string{"internal/inbox"}, []string{pgx, uuid}},
	"internal/tenantmove":  {nil, []string{pgx, uuid, "golang.org/x/sync"}},
	"internal/groupcommit": {nil, []string{}},
	"internal/httpapi": {
		[]string{"internal/payments", "internal/idempotency", "internal/groupcommit", "internal/credentials", "internal/strictjson", "internal/webhooks", "api"},
		[]string{pgx, uuid, "github.com/go-chi/chi/v5", hooks},
	},
	"internal/strictjson": {nil, []string{}},
	"internal/config":     {nil, []string{pgx}},
	"internal/kafkalogin": {[]string{"internal/config"}, []string{kgo}},
	"internal/telemetry":  {nil, []string{otel, prom}},
	"internal/postgres":   {nil, []string{pgx}},
	"internal/program":    {nil, []string{pgx, cli}},
	"internal/process":    {nil, []string{}},
	"internal/client":     {nil, []string{}},
	"internal/scrape":     {nil, []string{prom}},
	"internal/top":        {[]string{"internal/scrape"}, []string{prom}},
	"internal/top/screen": {[]string{"internal/top"}, []string{}},
	"internal/fakepsp":    {nil, []string{hooks}},
	"internal/invariant":  {nil, []string{pgx, uuid, kgo}},
	"internal/traffic":    {[]string{"internal/client", "internal/invariant", "internal/outbox", "internal/payments", "internal/psp"}, []string{pgx, uuid, kgo, "golang.org/x/sync"}},
	"internal/embedded":   {nil, []string{pgx, kgo, "github.com/fergusstrange/embedded-postgres"}},
	"internal/testenv":    {[]string{"internal/embedded", "migrations"}, nil},
	"api":                 {nil, []string{}},
	"deploy":              {nil, []string{}},
	"migrations":          {nil, []string{pgx, "github.com/pressly/goose/v3"}},
	"cmd/api":             {[]string{"api", "internal/*", "migrations"}, nil},
	"cmd/relay":           {[]string{"internal/*", "migrations"}, nil},
	"cmd/consumer":        {[]string{"internal/*", "migrations"}, nil},
	"cmd/worker":          {[]string{"internal/*", "migrations"}, nil},
	"cmd/migrate":         {[]string{"internal/*", "migrations"}, nil},
	"cmd/fakepsp":         {[]string{"internal/fakepsp", "internal/program"}, []string{cli}},
	"cmd/oncepay":         {[]string{"internal/*", "migrations"}, append([]string{pgx, uuid, cli}, terminal...)},
	"cmd/demo":            {[]string{"internal/*", "cmd/demo/local", "cmd/demo/page", "cmd/demo/stage"}, nil},
	"cmd/demo/local":      {[]string{"internal/embedded", "internal/process", "migrations", "test/pgproxy"}, []string{pgx, kgo}},
	"cmd/demo/page":       {nil, []string{}},
	"cmd/demo/stage":      {[]string{"internal/*", "cmd/demo/local", "cmd/demo/page"}, []string{pgx, uuid, kgo, prom}},
	"examples/orders": {
		[]string{"internal/client", "internal/idempotency", "internal/outbox", "internal/relay", "internal/relay/kafka"},
		[]string{pgx, uuid, "golang.org/x/sync"},
	},
	"examples/minimal": {
		[]string{"internal/idempotency", "internal/outbox", "internal/relay", "internal/relay/kafka"},
		[]string{pgx, uuid, "golang.org/x/sync"},
	},
	"examples/webhook-receiver": {nil, []string{hooks}},

	"tools/mutants":  {nil, []string{}},
	"tools/rig":      {[]string{"internal/embedded", "internal/testenv", "internal/scrape", "internal/traffic", "migrations"}, []string{pgx, kgo, prom, "github.com/HdrHistogram/hdrhistogram-go"}},
	"tools/bench":    {[]string{"internal/*", "tools/rig"}, []string{pgx, uuid, kgo, prom, "golang.org/x/sync"}},
	"tools/soak":     {[]string{"internal/*", "tools/rig"}, []string{pgx, uuid, kgo, "golang.org/x/sync"}},
	"test/observe":   {[]string{"internal/process", "internal/testenv"}, []string{}},
	"test/pgproxy":   {nil, []string{pgx}},
	"test/plans":     {nil, nil},
	"test/servers":   {[]string{"internal/testenv", "internal/embedded"}, nil},
	"test/structure": {nil, nil},
	"test/e2e":       {nil, nil},
	"test/ops":       {nil, nil},
	"test/contract":  {nil, nil},
}

// onlyFor lists packages that no other program than those named may contain.
var onlyFor = map[string][]string{
	"internal/testenv":   {"test/observe", "test/servers", "tools/rig", "tools/bench", "tools/soak"},
	"internal/embedded":  {"cmd/demo/local", "tools/rig", "tools/bench", "tools/soak", "internal/testenv", "test/servers"},
	"deploy":             {},
	"test/observe":       {},
	"test/pgproxy":       {"test/e2e", "cmd/demo/local"},
	"internal/fakepsp":   {"cmd/fakepsp", "cmd/demo", "cmd/demo/stage", "tools/rig", "tools/bench", "tools/soak"},
	"internal/process":   {"cmd/demo/local", "tools/bench", "tools/soak", "test/e2e", "test/ops", "test/observe"},
	"internal/invariant": {"cmd/demo", "cmd/demo/stage", "tools/bench", "tools/soak", "test/e2e", "internal/traffic"},
	"internal/traffic":   {"cmd/demo", "cmd/demo/stage", "tools/rig", "tools/bench", "tools/soak"},
	"tools/rig":          {"tools/bench", "tools/soak"},

	"internal/scrape":     {"internal/top", "cmd/demo/stage", "tools/rig"},
	"internal/top":        {"cmd/oncepay", "internal/top/screen", "test/e2e"},
	"internal/top/screen": {"cmd/oncepay"},
}

func TestPackagesImportWhatTheTableAllowsAndNothingElse(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		rule, known := table[name]
		if !known {
			t.Errorf("%s is not in the table: add it here, to .golangci.yaml and to docs/design.md", name)
			continue
		}
		for _, imported := range p.Imports {
			inside, ours := strings.CutPrefix(imported, module)
			switch {
			case ours && !allowed(rule.inside, inside):
				t.Errorf("%s imports %s", name, inside)
			case ours && onlyFor[inside] != nil && !slices.Contains(onlyFor[inside], name):
				t.Errorf("%s imports %s, which is for %v", name, inside, onlyFor[inside])
			case !ours && strings.Contains(imported, ".") && rule.outside != nil && !allowed(rule.outside, imported):
				t.Errorf("%s imports %s", name, imported)
			}
		}
	}
}

func TestOnlyFilesNamedForItKnowKafka(t *testing.T) {
	t.Parallel()
	for _, file := range goFiles(t, "internal/inbox") {
		if strings.Contains(read(t, file), `"`+kgo) != strings.HasPrefix(filepath.Base(file), "kafka") {
			t.Errorf("%s: kafka*.go and no other file imports franz-go", file)
		}
	}
}

// TestKafkaStaysOut: the API writes events and must not depend on a broker's client, not even indirectly.
func TestKafkaStaysOut(t *testing.T) {
	t.Parallel()
	for _, folder := range []string{"cmd/api", "internal/outbox", "internal/relay"} {
		cmd := exec.Command("go", "list", "-deps", "./"+folder)
		cmd.Dir = root
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		if strings.Contains(string(out), kgo) {
			t.Errorf("%s depends on franz-go", folder)
		}
	}
}

// TestOnlyOncepayDraws: a server has no use for a terminal.
func TestOnlyOncepayDraws(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		for _, imported := range p.Imports {
			if allowed(terminal, imported) && p.ImportPath != module+"cmd/oncepay" {
				t.Errorf("%s imports %s", p.ImportPath, imported)
			}
		}
	}
}

// allowed says whether name is in list, or below a prefix in it; "internal/*" stands for all of internal.
func allowed(list []string, name string) bool {
	return slices.ContainsFunc(list, func(a string) bool {
		prefix, all := strings.CutSuffix(a, "*")
		return name == a || strings.HasPrefix(name, a+"/") || all && strings.HasPrefix(name, prefix)
	})
}

type pkg struct {
	ImportPath string
	Imports    []string
}

func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var ps []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); err == io.EOF {
			return ps
		} else if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, p)
	}
}
