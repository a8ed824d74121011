package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/testenv"
)

// browser shows the page of a demo in a real Chromium.
type browser struct {
	t   *testing.T
	ctx context.Context
	axe string // the source of axe-core
}

// openBrowser opens the page. Without a Chromium the test is skipped, in CI it fails. What the page's
// scripts throw, or the policy of the page forbids, fails the test.
func openBrowser(t *testing.T, url string) *browser {
	t.Helper()
	path := testenv.Tool(t, "NO CHROMIUM: the page is not tested (apt-get install chromium)", "chromium", "chromium-browser", "google-chrome")

	// NoSandbox: Chromium's own needs a kernel and a user that containers do not have.
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.WindowSize(1280, 1400), chromedp.WSURLReadTimeout(time.Minute))
	ctx, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	ctx, stop = chromedp.NewContext(ctx)
	t.Cleanup(stop)

	b := &browser{t, ctx, axeCore(t)}
	err := chromedp.Listen(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			t.Errorf("the page throws: %s", e.ExceptionDetails.Text)
		case *log.EventEntryAdded:
			// A refused button is answered with 4xx, which Chromium counts as an error.
			if e.Entry.Level == log.EntryLevelError && e.Entry.Source != log.EntrySourceNetwork {
				t.Errorf("the page's log: %s", e.Entry.Text)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, log.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	b.do(chromedp.Navigate(url))
	return b
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, stop := context.WithTimeout(b.ctx, time.Minute)
	defer stop()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

// get returns the value of an action.
func get[T any](b *browser, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, stop := context.WithTimeout(b.ctx, time.Minute)
	defer stop()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatal(err)
	}
	return v
}

// value of an expression in the page.
func value[T any](b *browser, expression string) T {
	b.t.Helper()
	return get(b, chromedp.Evaluate[T](expression))
}

// text of an element.
func (b *browser) text(selector string) string {
	b.t.Helper()
	return value[string](b, fmt.Sprintf(`document.querySelector(%q).textContent`, selector))
}

// await waits until an expression is true.
func (b *browser) await(expression string) {
	b.t.Helper()
	testenv.Eventually(b.t, 90*time.Second, func() error {
		if !value[bool](b, expression) {
			return fmt.Errorf("never: %s\n%s", expression, b.text("main"))
		}
		return nil
	})
}

// press clicks a button once it can be pressed, and waits for what the page says of it.
func (b *browser) press(action, says string) {
	b.t.Helper()
	button := fmt.Sprintf(`button[data-action=%q]`, action)
	b.await(fmt.Sprintf(`document.querySelector('%s')?.getAttribute('aria-disabled') !== 'true' && document.querySelector('%s') !== null`, button, button))
	value[string](b, `document.querySelector('#result').textContent = ''`)
	b.do(chromedp.Click(chromedp.CSS(button)))
	b.await(fmt.Sprintf(`document.querySelector('#result').textContent.includes(%q)`, says))
}

// shoot looks for violations in a state of the page, and keeps a picture for people to look at, if
// SCREENSHOTS names a directory.
func (b *browser) shoot(name string) {
	b.t.Helper()
	b.hasNoViolation(name)
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		return
	}
	picture := get(b, chromedp.FullScreenshot(100))
	if err := os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

const countPayments = `
SELECT count(*) FROM payments`

const countEvents = `
SELECT count(*) FROM outbox_events`

const statusOfPayment = `
SELECT status || ' ' || amount_minor FROM payments WHERE id = $1`

// TestPageInABrowser presses every button of the page and takes the tour with the keyboard. What the
// page says must be in the database.
func TestPageInABrowser(t *testing.T) {
	s := startShow(t)
	db, err := pgx.Connect(t.Context(), s.database())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(context.Background())

	b := openBrowser(t, s.url)
	b.await(`document.querySelectorAll('[data-box]').length === 9 && [...document.querySelectorAll('[data-box]')].every((box) => ['running', 'leading'].includes(box.dataset.state))`)
	b.await(`document.querySelector('#verdict').dataset.state === 'ok'`)
	b.shoot("calm")
	b.countsAreTheDatabases(db)
	b.everythingHasAName()

	b.press("pay", "201 Created")
	b.press("repeat", "Idempotent-Replayed: true")
	b.press("repeat-other-amount", "422")
	b.await(`document.querySelectorAll('#payment-rows > li').length >= 9`)
	b.paymentIsTheDatabases(db)
	b.press("hundred", "100 × 201 Created")
	b.shoot("payment")

	b.takeTour()

	for _, program := range []string{"api", "consumer", "worker", "psp", "relay"} {
		b.press("freeze/"+program, "is frozen")
		b.press("thaw/"+program, "goes on")
		b.await(`!document.querySelector('#lease-holder').textContent.startsWith('no ')`)
		b.press("kill/"+program, "killed")
	}
	b.press("open-transaction", "stays open")
	b.press("lose-commit-reply", "pay now")
	b.press("kill/kafka", "4 s")
	b.await(`document.querySelector('#timeline').textContent.includes('Kafka is away')`)
	b.await(`document.querySelector('#outbox-stragglers').textContent.includes('xid')`)
	b.shoot("faults")
	b.press("close-transaction", "has committed")
	b.press("pay", "201 Created")
	b.await(`[...document.querySelectorAll('[data-box]')].every((box) => ['running', 'leading'].includes(box.dataset.state))`)

	b.fitsAPhone()
	b.switches()

	s.stop()
	b.await(`!document.querySelector('#lost').hidden`)
	b.shoot("lost")
	if code := <-s.ended; code != 0 || !strings.Contains(s.printed(), "nothing lost, nothing doubled") {
		t.Fatalf("exit code %d: %s\n%s", code, s.stderr.String(), s.printed())
	}
}

// takeTour goes through the six steps without a mouse.
func (b *browser) takeTour() {
	b.t.Helper()
	began := time.Now()
	b.do(chromedp.Focus(chromedp.CSS(`#tour-toggle`)), chromedp.KeyEvent(kb.Enter))
	for n := 1; n <= 6; n++ {
		b.do(chromedp.KeyEvent(kb.Enter))
		b.await(`['ok', 'wrong'].includes(document.querySelector('#proof').dataset.state)`)
		if state := value[string](b, `document.querySelector('#proof').dataset.state`); state != "ok" {
			b.t.Fatalf("step %d: %s", n, b.text("#proof"))
		}
		if _, err := os.Stat("../../" + b.text("#proof-file")); err != nil {
			b.t.Errorf("step %d: %v", n, err)
		}
		b.shoot("tour-" + strconv.Itoa(n))
		if n < 6 {
			b.do(chromedp.KeyEvent(kb.ArrowRight))
		}
	}
	if said := b.text("#tour-progress"); said != "6 of 6 proved." {
		b.t.Errorf("the tour says %q", said)
	}
	b.t.Logf("the tour took %s", time.Since(began).Round(time.Second))
	b.do(chromedp.KeyEvent(kb.Escape))
}

// countsAreTheDatabases compares what runs on with what is read before and after.
func (b *browser) countsAreTheDatabases(db *pgx.Conn) {
	b.t.Helper()
	read := func(sql string) (n int) {
		if err := db.QueryRow(b.t.Context(), sql).Scan(&n); err != nil {
			b.t.Fatal(err)
		}
		return n
	}
	shown := func(selector string) int {
		n, err := strconv.Atoi(strings.ReplaceAll(b.text(selector), ",", ""))
		if err != nil {
			b.t.Fatalf("%s: %v", selector, err)
		}
		return n
	}

	// All events that were sent, and no more than there are.
	before := read(countEvents)
	testenv.Eventually(b.t, time.Minute, func() error {
		if n := shown("#outbox-sent"); n < before {
			return fmt.Errorf("%d events were sent of %d", n, before)
		}
		return nil
	})
	if sent, all := shown("#outbox-sent"), read(countEvents); sent > all {
		b.t.Errorf("%d events were sent of %d", sent, all)
	}
	if read(countPayments) == 0 {
		b.t.Error("nobody has paid")
	}
}

func (b *browser) paymentIsTheDatabases(db *pgx.Conn) {
	b.t.Helper()
	testenv.Eventually(b.t, time.Minute, func() error { // the page reads it now and then
		var stored string
		id := strings.TrimSpace(b.text("#payment-id"))
		if err := db.QueryRow(b.t.Context(), statusOfPayment, id).Scan(&stored); err != nil {
			return fmt.Errorf("payment %q: %w", id, err)
		}
		rows := b.text("#payment-rows")
		for _, value := range strings.Fields(stored) {
			if !strings.Contains(rows, value) {
				return fmt.Errorf("no %s in the rows: %s", value, rows)
			}
		}
		return nil
	})
}

// everythingHasAName reads the page as a screen reader does.
func (b *browser) everythingHasAName() {
	b.t.Helper()
	tree, err := chromedp.Call(b.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	if err != nil {
		b.t.Fatal(err)
	}
	named := 0
	for _, n := range tree.Nodes {
		if n.Role == nil {
			continue
		}
		role := strings.Trim(string(n.Role.Value), `"`)
		if n.Ignored || role != "button" && role != "switch" && role != "region" && role != "link" {
			continue
		}
		if n.Name == nil || len(n.Name.Value) <= 2 { // ""
			b.t.Errorf("a %s has no name", role)
		}
		named++
	}
	if named < 20 {
		b.t.Errorf("%d buttons, switches, regions and links", named)
	}
}

// fitsAPhone: nothing sticks out at 360 pixels.
func (b *browser) fitsAPhone() {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(360, 740, chromedp.EmulateMobile))
	if width := value[int](b, `document.scrollingElement.scrollWidth`); width > 360 {
		b.t.Errorf("the page is %d pixels wide", width)
	}
	b.shoot("phone")
	b.do(chromedp.EmulateViewport(1280, 1400))
}

// switches are remembered when the page is opened again.
func (b *browser) switches() {
	b.t.Helper()
	b.do(chromedp.Click(chromedp.CSS(`#dark`)), chromedp.Click(chromedp.CSS(`#motion`)))
	want := value[string](b, `document.querySelector('#dark').ariaChecked + document.querySelector('#motion').ariaChecked`)
	b.do(chromedp.Reload())
	b.await(`document.querySelector('[data-box="api"]')?.dataset.state === 'running'`)
	if got := value[string](b, `document.querySelector('#dark').ariaChecked + document.querySelector('#motion').ariaChecked`); got != want {
		b.t.Errorf("%s after it was opened again, not %s", got, want)
	}
	b.shoot("dark")
}
