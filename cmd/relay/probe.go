package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/relay"
)

// probe answers /readyz. Ready means: this instance reaches both ends, and is not the reason why
// events wait.
//
// Of a stall the database is asked, not this process: one whose loop is stuck believes that all is
// well. The instance that led last fails, and if its lease has run out so do the others, since none
// of them does better. While another instance leads, a standby stays ready, and says that the
// leader moves nothing: a deploy that replaces the leader waits until the new instances are ready.
//
// /livez stays 200 in a stall. A restart helps only if the process itself is stuck. It does not
// bring back a broker, a topic's rights or a lock that another session holds, it makes events that
// are on the topic go out again, and it takes away what a profile would show. So a supervisor
// should raise an alarm, and a person restart the instance that led last, if the answer names no
// other reason.
type probe struct {
	pool   *pgxpool.Pool
	broker func(context.Context) error
	holder string // this instance, in the cursor's row
	stalls *relay.Stalls

	mu      sync.Mutex
	stall   *relay.Stall // the last look's
	failure error        // of this instance since it published last
	failed  time.Time
	parked  int64         // aggregates
	writer  time.Duration // age of the oldest open transaction that has written
}

// probeTimeout is shorter than the 3 s for which the command health waits.
const probeTimeout = 2 * time.Second

// ready asks both ends at once. It takes one connection of the pool.
func (p *probe) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()

	broker := make(chan error, 1)
	go func() { broker <- p.broker(ctx) }()

	stall, err := p.look(ctx)
	switch {
	case err != nil:
		err = fmt.Errorf("database: %w", err)
	case stall != nil && (stall.Holder == p.holder || !stall.Leads):
		err = errors.New("stalled: " + p.describe(stall))
	}
	return errors.Join(err, <-broker)
}

// look asks the database whether events wait and none moves.
func (p *probe) look(ctx context.Context) (*relay.Stall, error) {
	stall, err := p.stalls.Look(ctx, p.pool)
	if err != nil {
		return nil, err
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	p.stall = stall
	return stall, nil
}

func (p *probe) describe(stall *relay.Stall) string {
	text := []string{stall.String()}
	switch {
	case stall.Holder == p.holder && stall.Leads:
		text = append(text, "this instance leads")
	case stall.Holder == p.holder:
		text = append(text, "this instance led last")
	case stall.Leads:
		text = append(text, stall.Holder+" leads")
	case stall.Holder != "":
		text = append(text, stall.Holder+" led last")
	default:
		text = append(text, "no relay has ever led")
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failure != nil {
		text = append(text, fmt.Sprintf("the last failure here, %s ago: %v",
			time.Since(p.failed).Round(time.Second), p.failure))
	}
	return strings.Join(text, "; ")
}

// detail tells what waits for a reason that nothing sent elsewhere would change.
func (p *probe) detail() string {
	p.mu.Lock()
	stall, parked, writer := p.stall, p.parked, p.writer
	p.mu.Unlock()

	var lines []string
	if stall != nil {
		lines = append(lines, "the leader is stalled: "+p.describe(stall))
	}
	if parked > 0 {
		lines = append(lines, fmt.Sprintf(
			"%d aggregates are parked until an operator decides: relay dead-letters list", parked))
	}
	if writer >= 10*time.Second {
		lines = append(lines, fmt.Sprintf(
			"a transaction that has written has been open for %s: its events wait for it",
			writer.Round(time.Second)))
	}
	return strings.Join(lines, "\n")
}

// failing keeps why this instance moves nothing; nil: it has just moved something.
func (p *probe) failing(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failure, p.failed = err, time.Now()
}

// waiting keeps what waits for a person or a transaction.
func (p *probe) waiting(parked int64, writer time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.parked, p.writer = parked, writer
}
