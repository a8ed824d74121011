package stage

import (
	"context"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/oncepay/oncepay/cmd/demo/local"
	"github.com/oncepay/oncepay/internal/scrape"
)

// Programs are asked every second, and the figures are those of the last five: long enough for a
// percentile of 50 requests a second.
const (
	scrapeEvery = time.Second
	scrapeMax   = 400 * time.Millisecond
	figuresOf   = 5 * time.Second
)

// metrics are what the programs show on their private listeners.
type metrics struct {
	mu       sync.Mutex
	at       time.Time
	programs map[string]*series
}

// series are the samples of one process, oldest first.
type series struct {
	kind    string
	pid     int
	samples []sample
}

type sample struct {
	at       time.Time
	families map[string]*dto.MetricFamily
}

// read asks all programs that run, if it is time to.
func (m *metrics) read(ctx context.Context, programs []*local.Program) {
	if time.Since(m.at) < scrapeEvery-scrapeEvery/10 {
		return
	}
	m.at = time.Now()

	var all sync.WaitGroup
	for _, p := range programs {
		if p.Admin() == "" {
			continue
		}
		all.Go(func() {
			pid := 0
			var families map[string]*dto.MetricFamily
			if p.State() == local.Running {
				pid = p.Pid()
				families, _ = scraped(ctx, p.Admin()) // a program that does not answer has no figures
			}
			m.add(p, pid, families)
		})
	}
	all.Wait()
}

func (m *metrics) add(p *local.Program, pid int, families map[string]*dto.MetricFamily) {
	m.mu.Lock()
	defer m.mu.Unlock()

	if m.programs == nil {
		m.programs = map[string]*series{}
	}
	s := m.programs[p.Name]
	// A process that was started again counts from zero.
	if s == nil || s.pid != pid || families == nil {
		s = &series{kind: p.Kind, pid: pid}
		m.programs[p.Name] = s
	}
	if families == nil {
		return
	}

	now := time.Now()
	s.samples = append(s.samples, sample{now, families})
	for len(s.samples) > 2 && now.Sub(s.samples[0].at) > figuresOf {
		s.samples = s.samples[1:]
	}
}

// ours are the beginnings of the metrics that are shown; the others are not parsed.
var ours = []string{
	"http_", "idempotency_", "commit_", "relay_", "inbox_", "consumer_", "psp_", "expiry_", "webhooks_",
}

func scraped(ctx context.Context, admin string) (map[string]*dto.MetricFamily, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeMax)
	defer cancel()
	return scrape.Metrics(ctx, admin, ours...)
}
