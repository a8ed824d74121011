package observe

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/oncepay/oncepay/deploy"
	"github.com/oncepay/oncepay/internal/telemetry"
)

const (
	testsFile = "../../deploy/prometheus/rules_test.yaml"
	runbook   = "https://github.com/oncepay/oncepay/blob/main/"
)

type rule struct {
	Record, Alert, Expr, For string
	Labels, Annotations      map[string]string
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// rules returns those that record, and the alarms.
func rules(t *testing.T) (recorded, alarms []rule) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal([]byte(deploy.Rules), &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" {
				recorded = append(recorded, r)
			} else {
				alarms = append(alarms, r)
			}
		}
	}
	if len(recorded) == 0 || len(alarms) < 30 {
		t.Fatalf("%d rules that record, %d alarms", len(recorded), len(alarms))
	}
	return recorded, alarms
}

func TestPromtoolTestsTheRules(t *testing.T) {
	t.Parallel()
	promtool, dir := Find(t, "promtool"), t.TempDir()
	write(t, filepath.Join(dir, "rules.yaml"), deploy.Rules)
	write(t, filepath.Join(dir, "rules_test.yaml"), read(t, testsFile))
	for _, args := range [][]string{{"check", "rules", "rules.yaml"}, {"test", "rules", "rules_test.yaml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// TestEveryAlarmIsSilentFiresAndResolves looks for those three in what promtool is told to test.
func TestEveryAlarmIsSilentFiresAndResolves(t *testing.T) {
	t.Parallel()
	type test struct {
		Expressions []struct {
			Expr    string
			Time    string           `yaml:"eval_time"`
			Samples []map[string]any `yaml:"exp_samples"`
		} `yaml:"promql_expr_test"`
	}
	var file struct{ Tests []test }
	if err := yaml.Unmarshal([]byte(read(t, testsFile)), &file); err != nil {
		t.Fatal(err)
	}

	_, alarms := rules(t)
	for _, a := range alarms {
		tested := slices.ContainsFunc(file.Tests, func(c test) bool {
			seen, last := "", time.Duration(-1)
			for _, e := range c.Expressions {
				at, err := time.ParseDuration(e.Time)
				if err != nil || at <= last || !strings.Contains(e.Expr, `alertname="`+a.Alert+`"`) {
					continue
				}
				last = at
				if len(e.Samples) > 0 {
					seen += "fires "
				} else {
					seen += "silent "
				}
			}
			return strings.HasPrefix(seen, "silent fires silent")
		})
		if !tested {
			t.Errorf("no test of %s has it silent, then firing, then silent", a.Alert)
		}
	}
}

func TestAlarmsTellASleepyPersonEnough(t *testing.T) {
	t.Parallel()
	_, alarms := rules(t)
	for _, a := range alarms {
		if s := a.Labels["severity"]; s != "page" && s != "ticket" {
			t.Errorf("%s has the severity %q", a.Alert, s)
		}
		summary, description := a.Annotations["summary"], a.Annotations["description"]
		if len(summary) < 20 || len(description) < 60 || !strings.HasSuffix(summary, ".") || !strings.HasSuffix(description, ".") {
			t.Errorf("%s: %q, %q", a.Alert, summary, description)
		}
		if !regexp.MustCompile(`[0-9]|\$value|query`).MatchString(summary+description) && !strings.Contains(summary, "$labels") {
			t.Errorf("%s names no number: %q, %q", a.Alert, summary, description)
		}
	}
}

var (
	inBraces = regexp.MustCompile(`([a-z_:]+)\s*\{([^}]*)\}`)
	matcher  = regexp.MustCompile(`([a-z_]+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	quoted   = regexp.MustCompile(`"[^"]*"`)
	grouping = regexp.MustCompile(`\b(by|on|without|ignoring)\s*\([^)]*\)`)
	word     = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*\s*\(?`)
)

// metrics returns the names of the metrics in an expression: what is no function and no keyword.
func metrics(expression string) (names []string) {
	text := inBraces.ReplaceAllString(expression, "$1")
	text = grouping.ReplaceAllString(quoted.ReplaceAllString(text, ""), "")
	for _, w := range word.FindAllString(text, -1) {
		w = strings.TrimSpace(w)
		if strings.HasSuffix(w, "(") || !strings.Contains(w, "_") && w != "up" {
			continue
		}
		if !slices.Contains(names, w) {
			names = append(names, w)
		}
	}
	return names
}

// TestRulesNameWhatProgramsShow: a metric or a label value that was renamed would make its alarm silent for good.
func TestRulesNameWhatProgramsShow(t *testing.T) {
	t.Parallel()
	shown := everySeries(t)
	recorded, alarms := rules(t)
	for _, r := range recorded {
		shown[r.Record] = []map[string]string{{}}
	}
	for _, r := range append(recorded, alarms...) {
		for _, wrong := range unknown(r.Expr, shown) {
			t.Errorf("%s%s: %s", r.Record, r.Alert, wrong)
		}
		for _, text := range r.Annotations {
			for _, q := range regexp.MustCompile(`query (?:\(printf )?"([^"]*)"`).FindAllStringSubmatch(text, -1) {
				for _, name := range metrics(strings.ReplaceAll(q[1], `%q`, `"relay"`)) {
					if shown[name] == nil {
						t.Errorf("%s: there is no metric %s in %q", r.Alert, name, q[1])
					}
				}
			}
		}
	}

	for expression, wrong := range map[string]int{
		`sum(outbox_backlog_events) > 0`:                             0,
		`sum(outbox_backlog_event) > 0`:                              1,
		`rate(relay_errors_total{kind="fenced"}[5m])`:                0,
		`rate(relay_errors_total{kind="fence"}[5m])`:                 1,
		`rate(relay_errors_total{kin="fenced"}[5m])`:                 1,
		`rate(inbox_events_total{outcome=~"failed|parks"}[5m])`:      1,
		`sum by (job) (up{job=~"api|relais"}) and on () no_metric`:   2,
		`http_requests_total{status=~"5..", route!~"/livez|/ready"}`: 1,
	} {
		if got := unknown(expression, shown); len(got) != wrong {
			t.Errorf("%s: %v", expression, got)
		}
	}
}

// unknown returns the metrics, labels and values of an expression that no program shows.
func unknown(expression string, shown map[string][]map[string]string) (wrong []string) {
	for _, name := range metrics(expression) {
		if shown[name] == nil {
			wrong = append(wrong, "there is no metric "+name)
		}
	}
	for _, s := range inBraces.FindAllStringSubmatch(expression, -1) {
		for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
			values := []string{m[3]}
			if strings.HasSuffix(m[2], "~") {
				values = strings.Split(m[3], "|")
			}
			for _, v := range values {
				exact := regexp.MustCompile("^(?:" + v + ")$")
				if !slices.ContainsFunc(shown[s[1]], func(labels map[string]string) bool {
					value, has := labels[m[1]]
					return has && exact.MatchString(value)
				}) {
					wrong = append(wrong, fmt.Sprintf("no %s has %s=%q", s[1], m[1], v))
				}
			}
		}
	}
	return wrong
}

// everySeries returns the labels of what the programs show when they have measured everything once, by metric.
func everySeries(t *testing.T) map[string][]map[string]string {
	t.Helper()
	shown := map[string][]map[string]string{}
	for job, reg := range map[string]*prometheus.Registry{
		"api": apiMetrics(), "relay": relayMetrics(), "consumer": consumerMetrics(), "worker": workerMetrics(),
	} {
		shown["up"] = append(shown["up"], map[string]string{"job": job})
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				labels := map[string]string{"job": job}
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = l.GetValue()
				}
				shown[f.GetName()] = append(shown[f.GetName()], labels)
				if m.GetHistogram() != nil {
					for _, suffix := range []string{"_bucket", "_sum", "_count"} {
						shown[f.GetName()+suffix] = append(shown[f.GetName()+suffix], labels)
					}
				}
			}
		}
	}
	return shown
}

func apiMetrics() *prometheus.Registry {
	reg := telemetry.NewRegistry()
	m := telemetry.NewAPI(reg)
	telemetry.WatchQueue(reg, func() int { return 0 })
	for _, route := range []string{"/api/v1/payments", "/livez", "/readyz"} {
		m.Request(context.Background(), route, "POST", 503, 0)
	}
	return reg
}

func relayMetrics() *prometheus.Registry {
	reg := telemetry.NewRegistry()
	m := telemetry.NewRelay(reg)
	m.Backlog(0, 0, 0, 0)
	m.OldestWriter(0)
	m.TopicUnavailable("oncepay.payments")
	m.PartitionsChanged("oncepay.payments", 12, 24)
	m.CopiesWanted(2)
	m.Copies("oncepay.payments", 1)
	m.DaysAhead("outbox_events", 7)
	m.OldestSnapshot("session", 0, 0)
	return reg
}

func consumerMetrics() *prometheus.Registry {
	reg := telemetry.NewRegistry()
	measureConsumer(telemetry.NewConsumer(reg))
	return reg
}

func workerMetrics() *prometheus.Registry {
	reg := telemetry.NewRegistry()
	measureConsumer(telemetry.NewConsumer(reg))
	m := telemetry.NewWorker(reg)
	m.Overdue(0)
	m.Books("accounts", 0)
	m.Books("currencies", 0)
	m.Stalled("psp", false)
	telemetry.NewPSP(reg).Waiting(0, 0, 0, 0)
	telemetry.NewWebhooks(reg).Backlog(0, 0)
	return reg
}

func measureConsumer(m *telemetry.Consumer) {
	m.Lag(0)
	m.Letters(0, 0)
	m.Horizon(nil)
}

// TestRunbookAndRulesSayTheSame compares the table of docs/operating.md with the rules: names, severities, metrics and numbers.
func TestRunbookAndRulesSayTheSame(t *testing.T) {
	t.Parallel()
	document := read(t, "../../docs/operating.md")
	_, table, _ := strings.Cut(document, "| symptom | cause | do |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")

	_, alarms := rules(t)
	for _, a := range alarms {
		anchor, ours := strings.CutPrefix(a.Annotations["runbook"], runbook+"docs/operating.md#")
		heading := regexp.MustCompile(`(?mi)^## ` + strings.ReplaceAll(regexp.QuoteMeta(anchor), "-", "[ -]") + `$`)
		if !ours || !heading.MatchString(document) {
			t.Errorf("%s: no heading of the runbook is at %s", a.Alert, a.Annotations["runbook"])
		}

		title := a.Alert
		if a.Labels["severity"] == "page" {
			title = "**" + title + "**"
		}
		i := slices.IndexFunc(rows, func(row string) bool { return strings.HasPrefix(row, "| "+title+" ") })
		if i < 0 {
			t.Errorf("no row of the runbook begins with %s", title)
			continue
		}
		cells := strings.Split(rows[i], " | ")
		for _, name := range metrics(a.Expr) {
			if name = strings.TrimSuffix(name, "_bucket"); !strings.Contains(cells[0], name) && !strings.HasPrefix(name, "oncepay:") && name != "http_requests_total" {
				t.Errorf("the runbook does not name %s for %s", name, a.Alert)
			}
		}
		want, got := numbers(a.Expr+" "+a.For), numbers(strings.TrimPrefix(cells[0], "| "+title))
		if !slices.Equal(want, got) {
			t.Errorf("%s: the rule has the numbers %v, the runbook %v", a.Alert, want, got)
		}
		if anchor != "symptoms" && !strings.Contains(rows[i], "(#"+anchor+")") {
			t.Errorf("%s: the runbook's row does not link to %s", a.Alert, anchor)
		}
		rows = slices.Delete(rows, i, i+1)
	}

	for _, row := range rows { // what is left is no alarm
		if cell, _, _ := strings.Cut(row, " | "); regexp.MustCompile("[<>=]").MatchString(cell) {
			t.Errorf("there is no alarm for %s", cell)
		}
	}
}

// numbers returns the numbers and times of an expression, or of a sentence that says the same: 0.01 is 1 %, 0.005 is 5 ms.
func numbers(text string) (all []string) {
	text = regexp.MustCompile(`ratio_rate(\w+)`).ReplaceAllString(text, "[$1]")
	text = quoted.ReplaceAllString(text, "")
	text = regexp.MustCompile(`\b(?:le|on|by) \([^)]*\)|[a-zA-Z_:]+_[a-z_:]*`).ReplaceAllString(text, "")
	text = strings.NewReplacer("p99", "0.99", "0.01 %", "0.0001", "1 %", "0.01", "5 %", "0.05", "5 ms", "0.005").Replace(text)
	for _, n := range regexp.MustCompile(`[0-9]+(?:\.[0-9]+)?[smhd]?\b`).FindAllString(text, -1) {
		if !slices.Contains(all, n) {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return all
}
