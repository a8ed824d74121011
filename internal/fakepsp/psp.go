package fakepsp

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// Options of a PSP.
type Options struct {
	APIKey        string // of callers
	WebhookURL    string // empty: no webhooks
	WebhookSecret string // whsec_ and base64

	Seed   uint64 // the same seed and order of calls draws the same faults
	Faults Faults // until SetFaults
	Log    *slog.Logger
}

// PSP is the provider. It is an http.Handler.
type PSP struct {
	options Options
	log     *slog.Logger
	mux     *http.ServeMux

	journal *journal
	books   *books
	courier *courier // nil without a webhook URL

	faults atomic.Pointer[Faults]
	calls  atomic.Uint64
	firsts firsts
	limit  limit

	closing   chan struct{} // closed to cut pauses short
	drainOnce sync.Once
	closeOnce sync.Once
	closed    error
}

// Open reads the books in dir, which it makes if need be, and begins to send webhooks. The caller
// calls Close.
func Open(dir string, o Options) (*PSP, error) {
	if err := o.check(); err != nil {
		return nil, err
	}

	p := &PSP{options: o, log: o.Log, books: newBooks(), closing: make(chan struct{})}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	p.faults.Store(&o.Faults)
	p.mux = p.routes()

	if o.WebhookURL != "" {
		signer, err := standardwebhooks.NewWebhook(o.WebhookSecret)
		if err != nil {
			return nil, fmt.Errorf("webhook secret: %w", err)
		}
		p.courier = newCourier(p, signer)
	}

	// Events wait until all is read: what is delivered stands behind them.
	reading := true
	journal, torn, err := openJournal(dir, func(r record) {
		events := p.books.apply(r)
		if p.courier != nil && !reading {
			p.courier.add(events)
		}
	})
	if err != nil {
		return nil, err
	}
	reading = false // nothing is written before Open returns
	p.journal = journal

	if torn > 0 {
		p.log.Warn("a torn last line was cut off the books", "bytes", torn)
	}

	// The books continue where they ended, and so do the draws.
	p.calls.Store(uint64(len(p.books.keys)))

	if p.courier != nil {
		p.courier.start(p.books.undelivered())
	}
	return p, nil
}

func (o Options) check() error {
	if o.APIKey == "" {
		return errors.New("the API key is not set")
	}
	if err := o.Faults.Check(); err != nil {
		return err
	}
	if o.WebhookURL == "" {
		return nil
	}

	u, err := url.Parse(o.WebhookURL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("the webhook URL must be http://… or https://…")
	}
	if o.WebhookSecret == "" {
		return errors.New("the webhook secret is not set")
	}
	return nil
}

// Drain cuts pauses short, so that calls in hand are answered now. It comes before
// http.Server.Shutdown.
func (p *PSP) Drain() { p.drainOnce.Do(func() { close(p.closing) }) }

// Close ends pauses and webhooks, writes what was accepted and closes the books. Calls that come
// later are answered 500. It returns why the books could not be written, if so.
func (p *PSP) Close() error {
	p.closeOnce.Do(func() {
		p.Drain()
		if p.courier != nil {
			p.courier.stop()
		}
		p.closed = p.journal.close()
	})
	return p.closed
}

// Failed is closed when the books cannot be written any more. All calls are answered 500 then, and
// Close says why.
func (p *PSP) Failed() <-chan struct{} { return p.journal.failed }

// Faults returns how the provider misbehaves now.
func (p *PSP) Faults() Faults { return *p.faults.Load() }

// SetFaults changes how the provider misbehaves, from the next call on.
func (p *PSP) SetFaults(f Faults) error {
	if err := f.Check(); err != nil {
		return err
	}
	p.faults.Store(&f)
	return nil
}

// injected counts a fault, in the books, so that it is known after a crash, too.
func (p *PSP) injected(name string) { p.journal.note(record{Fault: name}) }

// pause waits, but not longer than until Drain. A caller that hangs up changes nothing: a request
// that was received is executed.
func (p *PSP) pause(d time.Duration) {
	if d <= 0 {
		return
	}

	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.closing:
	}
}

// limit lets so many calls through in each second.
type limit struct {
	mu     sync.Mutex
	second int64
	passed int
}

func (l *limit) allow(now time.Time, most int) bool {
	if most == 0 {
		return true
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	if s := now.Unix(); s != l.second {
		l.second, l.passed = s, 0
	}
	l.passed++
	return l.passed <= most
}
