package idempotency_test

import (
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/idempotency"
)

const (
	short, long = 72 * time.Hour, 720 * time.Hour
	day         = 24 * time.Hour
)

func TestExtendRetentionNeverLowers(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	for _, c := range []struct{ configured, kept time.Duration }{
		{240 * time.Hour, 240 * time.Hour}, {24 * time.Hour, 240 * time.Hour}, {0, 240 * time.Hour}, {241 * time.Hour, 241 * time.Hour},
	} {
		kept, err := idempotency.ExtendRetention(t.Context(), d.write, c.configured)
		if err != nil || kept != c.kept {
			t.Errorf("configured to %s: kept for %s, want %s (%v)", c.configured, kept, c.kept, err)
		}
	}
	makeDay(t, d.owner, -11) // 241 h ago is the tenth or eleventh day before today
	makeDay(t, d.owner, -13)
	if p := keep(t, d.owner); p.Dropped != 1 {
		t.Errorf("%+v: want only the day dropped that no program promised", p)
	}
}

// Instance A was started with 24 hours. B starts later and promises 72.
func TestRetentionRaisedOnOneInstance(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	extend(t, d.write, day) // A
	makeDays(t, d, 4)
	extend(t, d.write, short) // B
	r := newRequest()
	insert(t, d.owner, r, 2*day)

	a, err := idempotency.Run(t.Context(), d.write, again(r), day, work(r))
	if err != nil || a.State != idempotency.Replay {
		t.Errorf("A, two days after B promised three: %s, %v", a.State, err)
	}
	tx := begin(t, d.write)
	if a, err := idempotency.Peek(t.Context(), tx, again(r), day); err != nil || a.State != idempotency.Replay {
		t.Errorf("A's look: %s, %v", a.State, err)
	}
}

func TestAnswerPromisesNoMoreThanIsKept(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	for name, c := range map[string]struct{ kept, configured, promised time.Duration }{
		"less is configured":      {long, short, short},
		"as much is configured":   {long, long, long},
		"it was lowered by hand":  {short, long, short},
		"the default":             {long, 0, idempotency.DefaultRetention},
		"nothing was promised":    {0, short, short},
		"lowered below a default": {day, 0, day},
	} {
		t.Run(name, func(t *testing.T) {
			tx := begin(t, d.owner)
			mustExec(t, tx, `DELETE FROM idempotency_retention`)
			if c.kept > 0 {
				mustExec(t, tx, `INSERT INTO idempotency_retention (keep) VALUES ($1)`, c.kept)
			}
			done := newRequest()
			insert(t, tx, done, 0)

			as, err := idempotency.Claim(t.Context(), tx, []idempotency.Request{newRequest(), again(done)}, c.configured)
			if err != nil {
				t.Fatal(err)
			}
			peeked, err := idempotency.Peek(t.Context(), tx, again(done), c.configured)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range append(as, peeked) {
				if got := a.Expires.Sub(a.Date); got != c.promised {
					t.Errorf("%s: promised for %s, want %s", a.State, got, c.promised)
				}
			}
		})
	}
}

// The steps of docs/operating.md, in its order and with its statement, from 720 hours to 72.
func TestRetentionIsLoweredAsDocumented(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	makeDays(t, d, 35)
	paidOnce := func(when string, r idempotency.Request, configured time.Duration) {
		t.Helper()
		a, err := idempotency.Run(t.Context(), d.write, again(r), configured, work(r))
		if err != nil || a.State != idempotency.Replay {
			t.Errorf("%s: %s, %v; it pays again", when, a.State, err)
		}
	}
	// passes ages the stored keys. Their days move with them, and days that are no longer promised
	// go.
	passes := func(time time.Duration) {
		t.Helper()
		mustExec(t, d.owner, `DELETE FROM idempotency_keys WHERE created_at < now() - interval '721 hours' + $1::interval`, time)
		mustExec(t, d.owner, `UPDATE idempotency_keys SET created_at = created_at - $1::interval,
			day = ((created_at - $1::interval) AT TIME ZONE 'utc')::date`, time)
		keep(t, d.owner)
	}

	// Before: every instance promises 720 hours.
	extend(t, d.write, long)
	first, last := newRequest(), newRequest()
	d.run(t, first)
	passes(10 * day)
	if a, err := idempotency.Run(t.Context(), d.write, last, long, work(last)); err != nil || a.Expires.Sub(a.Date) != long {
		t.Fatalf("promised until %s: %v", a.Expires, err)
	}

	// 1. Configure 72 hours and restart all instances. From now on that is what answers promise,
	// and 720 is what is kept.
	extend(t, d.write, short)
	young := newRequest()
	a, err := idempotency.Run(t.Context(), d.write, young, short, work(young))
	if err != nil || a.Expires.Sub(a.Date) != short {
		t.Errorf("promised until %s: %v", a.Expires, err)
	}

	// 2. Wait 720 hours. Until the very end of that time each key is remembered for as long as it
	// was promised.
	passes(long - 10*day - time.Minute)
	paidOnce("the first one's last minute", first, short)
	passes(10 * day)
	paidOnce("the last one's last minute", last, short)
	passes(time.Minute)
	younger, expired := newRequest(), newRequest()
	insert(t, d.owner, younger, short-time.Minute)
	insert(t, d.owner, expired, short+2*day)

	// 3. Lower what is kept. It holds for the next look-up, of every instance, and for the relay's
	// next upkeep.
	page, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	step := regexp.MustCompile(`(?m)^ +(UPDATE idempotency_retention .*)$`).FindSubmatch(page)
	if step == nil {
		t.Fatal("docs/operating.md has no statement that lowers what is kept")
	}
	mustExec(t, d.owner, string(step[1]))
	paidOnce("promised 72 hours", younger, short)
	wantState(t, d.run(t, again(expired)), idempotency.New)
	if p := keep(t, d.owner); p.Dropped == 0 {
		t.Error("no day was dropped")
	}
	paidOnce("promised 72 hours, days dropped", younger, short)
}

func makeDays(t *testing.T, d database, n int) {
	t.Helper()
	for age := 1; age <= n; age++ {
		makeDay(t, d.owner, -age)
	}
}
