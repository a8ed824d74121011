// Package top turns what the programs show at /metrics into the figures of one screen: rates,
// quantiles, states, and what is wrong now. It draws nothing, see internal/top/screen.
//
// A figure that cannot be known is NaN, never 0: a program that is unreachable or has just started
// does no "0 requests a second".
package top

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/oncepay/oncepay/internal/scrape"
)

// The programs, by the names they have everywhere.
const (
	API      = "api"
	Relay    = "relay"
	Consumer = "consumer"
	Worker   = "worker"
)

// Programs are all of them, in the order in which a payment passes through.
var Programs = []string{API, Relay, Consumer, Worker}

// Target is an instance of a program.
type Target struct {
	Program string
	Address string // host and port of its ADMIN_ADDR
}

// reading is what an instance showed at one time.
type reading struct {
	at       time.Time
	err      error // it could not be read: there are no families
	families map[string]*dto.MetricFamily
}

// read scrapes an instance once.
func read(ctx context.Context, t Target) reading {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	families, err := scrape.Metrics(ctx, t.Address)
	return reading{at: time.Now(), err: cause(err), families: families}
}

// cause drops method and URL, which the screen shows beside it.
func cause(err error) error {
	if err == nil {
		return nil
	}
	if timeout, is := errors.AsType[net.Error](err); is && timeout.Timeout() {
		return fmt.Errorf("no answer within %s", patience)
	}
	for {
		below := errors.Unwrap(err)
		if below == nil {
			return err
		}
		err = below
	}
}

// value returns the sum of the series of this name with these labels, given as name and value in
// turn; NaN if there is none.
func (r reading) value(name string, labels ...string) float64 {
	sum := math.NaN()
	for _, m := range r.series(name, labels...) {
		if math.IsNaN(sum) {
			sum = 0
		}
		sum += number(m)
	}
	return sum
}

// series returns the series of this name with these labels.
func (r reading) series(name string, labels ...string) (found []*dto.Metric) {
	for _, m := range r.families[name].GetMetric() {
		if has(m, labels) {
			found = append(found, m)
		}
	}
	return found
}

func has(m *dto.Metric, labels []string) bool {
	for i := 0; i+1 < len(labels); i += 2 {
		if label(m, labels[i]) != labels[i+1] {
			return false
		}
	}
	return true
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// number returns the value of a counter or gauge, or how many observations a histogram has.
func number(m *dto.Metric) float64 {
	switch {
	case m.Counter != nil:
		return m.GetCounter().GetValue()
	case m.Gauge != nil:
		return m.GetGauge().GetValue()
	case m.Histogram != nil:
		return float64(m.GetHistogram().GetSampleCount())
	}
	return m.GetUntyped().GetValue()
}
