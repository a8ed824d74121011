package inbox_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/testenv"
)

// Behind a letter that nobody decides on a busy aggregate's events pile up. What is done for the others, and for the
// operator, must not look at each of them: it would take longer than a statement may, and nothing would be released.
func TestCrowdBehindALetterIsNotLookedAt(t *testing.T) {
	t.Parallel()
	const crowd = 30_000
	d := newDesk(t, testenv.Brokers(t), 1)
	d.produce(t, d.numbered(0, "busy", 1, poisoned...), d.numbered(0, "other", 1, poisoned...))
	stop := d.start(t, d.consumer(t))
	letters := d.letters(t, 2)
	stop()
	_, err := d.owner.Exec(t.Context(), `
		INSERT INTO inbox_dead_letters (consumer, event_id, event_day, event_type, sequence, topic, partition, "offset", key, headers, payload)
		SELECT consumer, gen_random_uuid(), event_day, event_type, i, topic, partition, i, key, headers, payload
		FROM inbox_dead_letters, generate_series(2, $1) i WHERE key = 'busy'`, crowd)
	if err == nil {
		_, err = d.owner.Exec(t.Context(), `ANALYZE inbox_dead_letters`) // the server does so by itself, later
	}
	if err != nil {
		t.Fatal(err)
	}

	read := func() (rows int) {
		err := d.owner.QueryRow(t.Context(), `SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_user_tables WHERE relname = 'inbox_dead_letters'`).Scan(&rows)
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	before := read()
	pool := d.poolWith(t, func(c *pgx.ConnConfig) {
		for _, plan := range []string{"seqscan", "bitmapscan", "hashjoin", "mergejoin"} { // as in every program
			c.RuntimeParams["enable_"+plan] = "off"
		}
	})
	c := d.consumer(t)
	c.DB = pool
	stop = d.start(t, c)
	d.cured.Store(true)
	if err := retry(t.Context(), pool, letters[1].ID); err != nil {
		t.Fatal(err)
	}
	d.wantApplied(t, map[string][]int64{"other": {1}})
	testenv.Eventually(t, waitLimit, func() error { // it waits 50 ms at most for the consumer's own
		_, err := drop(t.Context(), pool, "test", 2)
		return err
	})
	// What is told as numbers is right all the same.
	testenv.Eventually(t, waitLimit, func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.passes[[2]int64{1, 1}] == 0 {
			return errors.New("not measured yet")
		}
		return nil
	})
	found, err := inbox.DeadLetters(t.Context(), pool, "test", false)
	if err != nil || len(found) != 1 || found[0].Waiting != 10_000 {
		t.Errorf("listed %+v, %v", found, err)
	}
	stop()
	pool.Close() // the server counts what a session did when it ends

	testenv.Eventually(t, waitLimit, func() error {
		if read() == before {
			return errors.New("not counted yet")
		}
		return nil
	})
	// The operator's list has counted 10,000.
	if n := read() - before; n > crowd/2 {
		t.Errorf("%d rows were read beside %d that wait", n, crowd)
	}
}

// Letters without a key are of no aggregate: none waits for another one.
func TestLettersWithoutAKeyAreDecidedOnAlone(t *testing.T) {
	t.Parallel()
	d := newDesk(t, testenv.Brokers(t), 1)
	var records []*kgo.Record
	for n := range 3 {
		r := d.numbered(0, "", n+1, poisoned...)
		r.Key = nil
		records = append(records, r)
	}
	d.produce(t, records...)
	d.start(t, d.consumer(t))
	letters := d.letters(t, 3)
	testenv.Eventually(t, waitLimit, func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.passes[[2]int64{3, 3}] == 0 {
			return errors.New("three were not counted")
		}
		return nil
	})
	d.cured.Store(true)
	if err := retry(t.Context(), d.pool, letters[1].ID); err != nil {
		t.Fatal(err)
	}
	d.wantApplied(t, map[string][]int64{"": {2}})
	d.letters(t, 2)
}
