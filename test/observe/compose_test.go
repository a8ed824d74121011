package observe

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../../"

// TestComposeIsObserved: what the profile observability mounts exists, and Prometheus finds the programs where they listen.
func TestComposeIsObserved(t *testing.T) {
	t.Parallel()
	compose := text(t, "docker-compose.yml")
	for _, m := range regexp.MustCompile(`- (\./[^:\s]+):`).FindAllStringSubmatch(compose, -1) {
		if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
			t.Errorf("docker-compose.yml mounts %s: %v", m[1], err)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^    ports: \["(.*)"\]$`).FindAllStringSubmatch(compose, -1) {
		for port := range strings.SplitSeq(m[1], `", "`) {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("docker-compose.yml opens %s to other machines", port)
			}
		}
	}
	for _, m := range regexp.MustCompile(`image: (\S+/\S+)`).FindAllStringSubmatch(compose, -1) {
		if !regexp.MustCompile(`:v?\d+\.\d+\.\d+$`).MatchString(m[1]) {
			t.Errorf("the version of %s is not pinned", m[1])
		}
	}

	scrapes := regexp.MustCompile(`job_name: (\w+)\n.*targets: \["(\w+)(:\d+)"\]`).FindAllStringSubmatch(text(t, "deploy/prometheus/prometheus.yaml"), -1)
	if len(scrapes) != 4 {
		t.Errorf("Prometheus scrapes %q", scrapes)
	}
	for _, m := range scrapes {
		_, service, found := strings.Cut(compose, "\n  "+m[1]+":\n")
		service, _, _ = strings.Cut(service, "\n\n")
		if m[1] != m[2] || !found || !strings.Contains(service, "ADMIN_ADDR: "+m[3]+"\n") {
			t.Errorf("no %s of docker-compose.yml serves its metrics at %s%s", m[1], m[2], m[3])
		}
	}
}

func TestPrometheusTakesItsConfiguration(t *testing.T) {
	t.Parallel()
	out, err := exec.Command(Find(t, "promtool"), "check", "config", filepath.Join(root, "deploy/prometheus/prometheus.yaml")).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func text(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
