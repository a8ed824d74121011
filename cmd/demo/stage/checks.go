package stage

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/oncepay/oncepay/cmd/demo/local"
	"github.com/oncepay/oncepay/cmd/demo/page"
	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/psp"
	"github.com/oncepay/oncepay/internal/statements"
	"github.com/oncepay/oncepay/internal/traffic"
)

// A check reads whole tables, so the more there is the longer the pause behind it: a fiftieth of a
// processor is what all checks may take.
const (
	checkEvery = time.Second
	checkShare = 200
	checkMax   = 20 * time.Second

	longestPause = 20 * time.Second // the page calls a count old after 30 s
)

// checks counts the invariants again and again while the page is watched.
type checks struct {
	mu      sync.Mutex
	running bool
	due     time.Time
	shown   []page.Invariant
	at      float64

	watch *invariant.Watch // of the check that runs
}

// promises are the lines of the page, each with those of a report that it sums up.
var promises = []struct {
	name, text string
	lines      []string
}{
	{"paid_twice", "keys with more than one effect or answer", []string{invariant.KeysTwice}},
	{"answers_missing", "payments without the answer under their key", []string{invariant.AnswersMissing}},
	{"books_unbalanced", "payments, refunds and accounts out of balance", []string{
		invariant.PaymentsUnbalanced, invariant.RefundsUnbalanced, invariant.BalancesWrong, invariant.HoldsWrong,
	}},
	{"events_missing", "changes without their event in the outbox", []string{
		invariant.EventsMissing, invariant.TransitionsIllegal,
	}},
	{"events_lost", "events that were sent and are not on their topic", []string{invariant.EventsLost}},
	{"events_out_of_order", "events out of order", []string{invariant.EventsOutOfOrder}},
	{"effects_wrong", "events without their one effect at the consumer", []string{
		invariant.EffectsLost, invariant.StatementsWrong,
	}},
	{"charged_twice", "operations that the PSP has executed twice", []string{invariant.ChargedTwice}},
	{"psp_differs", "charges and refunds unlike the PSP's books", []string{
		invariant.ChargedUnbooked, invariant.BookedUncharged, invariant.PSPDiffers, invariant.OperationsWrong,
	}},
}

// keepUp begins a check if one is due and none runs.
func (c *checks) keepUp(s *Stage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running || time.Now().Before(c.due) || s.living.Err() != nil {
		return
	}
	c.running = true
	s.work.Go(func() { c.check(s) })
}

func (c *checks) check(s *Stage) {
	began, at, before := time.Now(), s.elapsed(), c.spent()
	report, err := c.count(s)
	took := time.Since(began)
	// What counts is the processor's time, where it can be read: on a busy machine a check waits. It is
	// told in hundredths of a second.
	if spent := c.spent(); spent > 0 {
		took = max(spent-before, 10*time.Millisecond)
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = false
	c.due = began.Add(min(max(checkEvery, checkShare*took), longestPause))
	if err != nil {
		// A broker that is away cannot be asked: the last result stays, with its time.
		c.due = time.Now().Add(max(checkEvery, time.Since(began)))
		return
	}

	last := c.shown
	c.shown, c.at = nil, at
	for i, p := range promises {
		line := page.Invariant{Name: p.name, Text: p.text}
		for _, name := range p.lines {
			line.Wrong += report.Line(name).Wrong
			line.Of += report.Line(name).Of
		}
		c.shown = append(c.shown, line)
		if line.Wrong > 0 && (last == nil || last[i].Wrong == 0) {
			s.Timeline.Add(page.Wrong, "%s: %d of %d", p.text, line.Wrong, line.Of)
		}
	}
}

// count goes on with the watch of the last check, or after an error with a new one.
func (c *checks) count(s *Stage) (report invariant.Report, err error) {
	ctx, cancel := context.WithTimeout(s.living, checkMax)
	defer cancel()

	if c.watch == nil {
		sources := invariant.Sources{
			DB: s.db, Brokers: s.Service.Brokers(), TopicPrefix: local.TopicPrefix,
			Consumer: statements.Consumer, PSP: []invariant.PSPEntry{},
		}
		books := traffic.NewBooks(psp.NewClient(s.Service.PSP(), local.PSPKey, 1))
		if c.watch, err = invariant.OpenWatch(ctx, sources, books.Next); err != nil {
			c.watch = nil
			return report, err
		}
	}

	if report, err = c.watch.Check(ctx); err != nil {
		c.watch.Close()
		c.watch = nil
	}
	return report, err
}

// spent is the processor time that the server has spent on the watch; zero: it is not known.
func (c *checks) spent() time.Duration {
	if c.watch == nil {
		return 0
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.watch.Backend()))
	if err != nil {
		return 0 // not Linux, or the session is gone
	}

	// Behind the name, which may contain anything: user and system time are the 12th and the 13th
	// of the fields, in hundredths of a second.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var hundredths int
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0
		}
		hundredths += n
	}
	return time.Duration(hundredths) * time.Second / 100
}

func (c *checks) result() ([]page.Invariant, float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]page.Invariant{}, c.shown...), c.at
}

func (c *checks) close() {
	if c.watch != nil {
		c.watch.Close()
	}
}
