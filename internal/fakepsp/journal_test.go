package fakepsp_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/oncepay/oncepay/internal/fakepsp"
)

// written returns the journal of three charges and a refund, and what its books say.
func written(t *testing.T) ([]byte, fakepsp.Books) {
	t.Helper()
	dir := t.TempDir()
	p := open(t, dir, fakepsp.Options{})
	for i := range 3 {
		refund(p, "refund", charged(t, charge(p, fmt.Sprint(i))).ID, 1000)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}

	text, err := os.ReadFile(filepath.Join(dir, "journal.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return text, p.Books()
}

// reopen opens books with this journal. It returns the log, too.
func reopen(t *testing.T, journal []byte) (dir string, p *fakepsp.PSP, log string, err error) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "journal.jsonl"), journal, 0o600); err != nil {
		t.Fatal(err)
	}

	var text bytes.Buffer
	o := fakepsp.Options{APIKey: apiKey, Log: slog.New(slog.NewTextHandler(&text, nil))}
	if p, err = fakepsp.Open(dir, o); err == nil {
		t.Cleanup(func() { p.Close() })
	}
	return dir, p, text.String(), err
}

func TestBooksAreReadBack(t *testing.T) {
	t.Parallel()
	journal, want := written(t)
	_, p, log, err := reopen(t, journal)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, p.Books()); diff != "" || log != "" {
		t.Error(diff, log)
	}
}

// TestTornLastLine cuts the journal off in its last line.
func TestTornLastLine(t *testing.T) {
	t.Parallel()
	journal, _ := written(t)
	last := bytes.LastIndexByte(journal[:len(journal)-1], '\n') + 1

	for end := len(journal) - 1; end > last; end -= 17 {
		dir, p, log, err := reopen(t, journal[:end])
		if err != nil {
			t.Fatalf("cut at %d: %v", end, err)
		}
		if n := len(p.Books().Charges); n != 2 || !strings.Contains(log, fmt.Sprint("bytes=", end-last)) {
			t.Fatalf("cut at %d: %d charges, log %s", end, n, log)
		}

		// What comes next is read back.
		charged(t, charge(p, "next"))
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if p := open(t, dir, fakepsp.Options{}); len(found(t, p, "next")) != 1 {
			t.Fatalf("cut at %d: the next charge is lost", end)
		}
	}
}

// TestDamageIsRefused: TestEveryDamagedByteIsFound looks closer.
func TestDamageIsRefused(t *testing.T) {
	t.Parallel()
	journal, _ := written(t)
	first := bytes.IndexByte(journal, '\n') + 1

	for name, text := range map[string][]byte{
		"empty line":   []byte("\n"),
		"zeros":        append(make([]byte, 100), '\n'),
		"text":         []byte("text\n"),
		"half a line":  append(bytes.Clone(journal[:first/2]), journal...),
		"other amount": bytes.Replace(journal, []byte("2500"), []byte("2501"), 1),
	} {
		_, _, _, err := reopen(t, text)
		if err == nil || !strings.Contains(err.Error(), "line 1, at byte 0: damaged") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBooksHaveOneUser(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := open(t, dir, fakepsp.Options{})

	_, err := fakepsp.Open(dir, fakepsp.Options{APIKey: apiKey})
	if err == nil || !strings.Contains(err.Error(), "another program uses them") {
		t.Errorf("a second user: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, dir, fakepsp.Options{})
}

func TestNothingIsChargedAfterClose(t *testing.T) {
	t.Parallel()
	p := withFaults(t, fakepsp.Faults{})
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if a := charge(p, "k"); a.status != 500 || p.Totals().ChargesSucceeded != 0 {
		t.Errorf("%s, %+v", a, p.Totals())
	}
	if a := call(p, "GET", "/readyz", "", ""); a.status != 503 {
		t.Errorf("ready: %s", a)
	}
}
