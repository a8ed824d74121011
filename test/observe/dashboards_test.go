package observe

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/testenv"
)

// dashboard is what the tests look at of deploy/grafana/*.json.
type dashboard struct {
	UID, Title    string
	SchemaVersion int
	Panels        []panel
}

type panel struct {
	ID                       int
	Type, Title, Description string
	Links                    []struct{ URL string }
	Datasource               struct{ UID string }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	GridPos                  struct{ X, Y, W, H int }
	Targets                  []struct{ RefID, Expr, LegendFormat string }
}

func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	files, err := filepath.Glob("../../deploy/grafana/*.json")
	if err != nil || len(files) != 4 {
		t.Fatalf("the dashboards are %v, %v", files, err)
	}
	all := map[string]dashboard{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d dashboard
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[filepath.Base(file)] = d
	}
	return all
}

// window is long enough for the client's rarest request to come often, on a slow machine too.
const window = "1m"

// everyExpression calls f with each expression as Grafana would send it, and the legend of what it returns.
func everyExpression(t *testing.T, f func(where, expression, legend string)) {
	t.Helper()
	variables := strings.NewReplacer("$__rate_interval", window, "$__range", window)
	for file, d := range dashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				f(fmt.Sprintf("%s, %q, %s", file, p.Title, target.RefID), variables.Replace(target.Expr), target.LegendFormat)
			}
		}
	}
}

func TestPanelsSayWhatTheyShow(t *testing.T) {
	t.Parallel()
	const most = 12
	runbook, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	uids := map[string]string{}
	for file, d := range dashboards(t) {
		if other := uids[d.UID]; d.UID == "" || other != "" || d.SchemaVersion < 39 {
			t.Errorf("%s: uid %q (also of %q), schema %d", file, d.UID, other, d.SchemaVersion)
		}
		uids[d.UID] = file

		panels, ids, at := 0, map[int]bool{}, map[[2]int]string{}
		for _, p := range d.Panels {
			if p.ID == 0 || ids[p.ID] {
				t.Errorf("%s: the id %d is not unique", file, p.ID)
			}
			ids[p.ID] = true
			for x := range p.GridPos.W {
				for y := range p.GridPos.H {
					cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
					if at[cell] != "" || cell[0] >= 24 {
						t.Errorf("%s: %q covers %q, or is outside", file, p.Title, at[cell])
					}
					at[cell] = p.Title
				}
			}
			if p.Type == "row" {
				continue
			}
			panels++
			if p.Title == "" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
				t.Errorf("%s: %q lacks a description, a unit, the data source or an expression", file, p.Title)
			}
			for _, l := range p.Links {
				if _, anchor, ok := strings.Cut(l.URL, "/docs/operating.md#"); !ok || !slices.Contains(anchors(string(runbook)), anchor) {
					t.Errorf("%s: %q links to %s, which is no heading of the runbook", file, p.Title, l.URL)
				}
			}
			if len(p.Links) != 1 {
				t.Errorf("%s: %q has %d links", file, p.Title, len(p.Links))
			}
		}
		if panels == 0 || panels > most {
			t.Errorf("%s has %d panels, more than %d are not looked at", file, panels, most)
		}
	}
}

// anchors returns the headings of a text as GitHub names them in links.
func anchors(text string) (all []string) {
	for _, h := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		all = append(all, strings.ToLower(strings.ReplaceAll(regexp.MustCompile(`[^\w -]`).ReplaceAllString(h[1], ""), " ", "-")))
	}
	return all
}

// TestDashboardsShowData: with the whole service running, every expression returns something, from metrics that exist.
func TestDashboardsShowData(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	p := Start(t, s.targets)

	everyExpression(t, func(where, expression, legend string) {
		testenv.Eventually(t, 2*time.Minute, func() error {
			got, err := p.Query(expression)
			for _, s := range got {
				if name := named(legend, s); strings.Contains(name, "{{") {
					t.Fatalf("%s: the legend would say %s", where, name)
				}
			}
			if err == nil && !slices.ContainsFunc(got, func(s Sample) bool { return !math.IsNaN(s.Value) }) {
				err = fmt.Errorf("%s: nothing comes of %s: %v", where, expression, got)
			}
			return err
		})
	})

	// `or` hides a name that is wrong.
	everyExpression(t, func(where, expression, _ string) {
		for _, metric := range metricsOf(expression) {
			if shownOnlyInTrouble[metric] {
				continue
			}
			testenv.Eventually(t, 30*time.Second, func() error { // one scrape may fail
				got, err := p.Query("count(" + metric + ")")
				if err == nil && len(got) == 0 {
					err = fmt.Errorf("%s: there is no metric %s", where, metric)
				}
				return err
			})
		}
	})

	t.Run("money in tells the truth", func(t *testing.T) { moneyInTellsTheTruth(t, p) })
	t.Run("profiles have a listener of their own", func(t *testing.T) {
		for name, address := range s.profiles {
			if _, err := get("http://" + address + "/debug/pprof/cmdline"); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := get("http://" + s.targets[name] + "/debug/pprof/cmdline"); err == nil {
				t.Errorf("%s: whoever may scrape may profile", name)
			}
		}
		if len(s.profiles) != 4 {
			t.Errorf("profiles are served at %v", s.profiles)
		}
	})
}

// shownOnlyInTrouble have a label for the topic that is in trouble. cmd/relay tests them.
var shownOnlyInTrouble = map[string]bool{"relay_topic_unavailable": true, "relay_topic_partitions_changed": true}

var (
	notNames = regexp.MustCompile(`\{[^}]*\}|\[[^\]]*\]|"[^"]*"|\b(?:by|on|without) \([^)]*\)`)
	names    = regexp.MustCompile(`[a-z_]+(?:_[a-z0-9]+)+\b(\(| \()?`)
)

// metricsOf returns the metrics that an expression names: the words with _ that are no function.
func metricsOf(expression string) (all []string) {
	for _, m := range names.FindAllStringSubmatch(notNames.ReplaceAllString(expression, ""), -1) {
		if m[1] == "" {
			all = append(all, m[0])
		}
	}
	return all
}

// named is what Grafana writes beside a line.
func named(legend string, s Sample) string {
	for label, text := range s.Labels {
		legend = strings.ReplaceAll(legend, "{{"+label+"}}", text)
	}
	return legend
}

// moneyInTellsTheTruth compares what the panels of money in say with what the client does: of 460 requests with a key
// 420 are new, 30 repeats and 10 use a key twice.
func moneyInTellsTheTruth(t *testing.T, p *Prometheus) {
	testenv.Eventually(t, 4*time.Minute, func() error { // a request that failed counts for one
		value, text, err := moneyIn(t, p)
		if err != nil {
			return err
		}
		const keys, claim, mismatch = "Keys by outcome / ", "Claim of the keys / ", "Mismatches under 1 %, in progress under 5 % / mismatch"
		for what, right := range map[string]bool{
			"nothing failed":                   value["Answered without a 5xx / without a 5xx"] == 1,
			"one in twelve is a repeat":        value[keys+"replay"] > value[keys+"new"]/24 && value[keys+"replay"] < value[keys+"new"]/6,
			"mismatches are under 5 %":         value[mismatch] >= 0 && value[mismatch] < 0.05,
			"what is new is answered with 201": value["Answers by status / 201"] > value[keys+"new"]/2,
			"quantiles are in order":           value[claim+"p50"] > 0 && value[claim+"p50"] <= value[claim+"p99"],
			"a batch has a request or more":    value["Requests in a transaction / mean"] >= 1,
			"transactions take time":           value["Waiting and transaction / transaction p99, done"] > 0,
		} {
			if !right {
				return fmt.Errorf("not shown: %s\n%s", what, text)
			}
		}
		return nil
	})
}

// moneyIn evaluates the panels of money in, by title and legend.
func moneyIn(t *testing.T, p *Prometheus) (value map[string]float64, text string, err error) {
	value = map[string]float64{}
	for _, panel := range dashboards(t)["money-in.json"].Panels {
		for _, target := range panel.Targets {
			got, err := p.Query(strings.ReplaceAll(target.Expr, "$__rate_interval", window))
			if err != nil {
				return nil, "", err
			}

			for _, s := range got {
				short, _, _ := strings.Cut(panel.Title, ":")
				name := short + " / " + named(target.LegendFormat, s)
				value[name] = s.Value
				text += fmt.Sprintf("%s = %.4g\n", name, s.Value)
			}
		}
	}
	return value, text, nil
}
