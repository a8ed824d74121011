package fakepsp

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

// FuzzJournal reads any bytes. What is read must come out the same when it is written and read
// again, and nothing of it may make the books panic. Checksums are made right every other time, or
// the fuzzer would not get past them.
func FuzzJournal(f *testing.F) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	c := Charge{ID: "ch_1", Object: "charge", Amount: 5, Currency: "usd", Status: succeeded,
		PaymentMethod: "tok_visa", Metadata: map[string]string{"operation_id": "1"}}
	r := Refund{ID: "re_1", Object: "refund", Charge: "ch_1", Amount: 5, Status: succeeded}
	for _, rec := range []record{
		{At: at, Key: "k", Request: "d", Charge: &c, Events: true},
		{At: at, Key: "r", Request: "d", Refund: &r, Events: true},
		{Delivered: "evt_1_created"},
		{Fault: repliesLost},
	} {
		line, err := rec.line()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(line, false)
		f.Add(append(bytes.Clone(line), line[:20]...), false)
		f.Add(line[bodyStart-1:], true)
	}
	f.Add([]byte("{}\n"), true)
	f.Add([]byte("\n\n"), false)

	f.Fuzz(func(t *testing.T, text []byte, sums bool) {
		if sums {
			text = withSums(text)
		}

		var records []record
		b := newBooks()
		good, err := readJournal(bytes.NewReader(text), func(r record) {
			records = append(records, r)
			b.apply(r)
		})
		b.totals()
		if err != nil {
			if !errors.Is(err, errDamaged) {
				t.Fatal(err)
			}
			return
		}

		// Only a line without its end is left over.
		if rest := text[good:]; bytes.IndexByte(rest, '\n') >= 0 {
			t.Fatalf("%q is left", rest)
		}

		var again bytes.Buffer
		for _, r := range records {
			line, err := r.line()
			if err != nil {
				t.Fatal(err)
			}
			again.Write(line)
		}
		var read []record
		if _, err := readJournal(&again, func(r record) { read = append(read, r) }); err != nil {
			t.Fatal(err)
		}
		for i := range records {
			// Times with the same instant may have another form.
			if !records[i].At.Equal(read[i].At) {
				t.Fatalf("%v and %v", records[i].At, read[i].At)
			}
			records[i].At, read[i].At = time.Time{}, time.Time{}
			if !reflect.DeepEqual(records[i], read[i]) {
				t.Fatalf("%+v and %+v", records[i], read[i])
			}
		}
	})
}

// withSums makes lines of the journal of lines that begin with a brace.
func withSums(text []byte) []byte {
	var lines bytes.Buffer
	for line := range bytes.Lines(text) {
		if len(line) > 1 && line[0] == '{' {
			body := bytes.TrimSuffix(line[1:], []byte("\n"))
			sum := crc32.Checksum(body, castagnoli)
			line = fmt.Appendf(nil, "%s%08x%s%s", beforeSum, sum, afterSum, line[1:])
		}
		lines.Write(line)
	}
	return lines.Bytes()
}

// TestEveryDamagedByteIsFound flips each bit of a journal.
func TestEveryDamagedByteIsFound(t *testing.T) {
	t.Parallel()
	c := record{Key: "k", Request: "d", Charge: &Charge{ID: "ch_1", Amount: 2500}}
	line, err := c.line()
	if err != nil {
		t.Fatal(err)
	}
	journal := bytes.Repeat(line, 2)
	last := len(journal) - 1 // a torn line, if it is another

	for at := range journal[:last] {
		for bit := range 8 {
			damaged := bytes.Clone(journal)
			damaged[at] ^= 1 << bit

			_, err := readJournal(bytes.NewReader(damaged), func(record) {})
			if !errors.Is(err, errDamaged) {
				t.Fatalf("%q instead of %q at byte %d: %v", damaged[at], journal[at], at, err)
			}
		}
	}
}

// TestFailedWriteEndsAllWriting: what an fsync did not keep must not be answered later.
func TestFailedWriteEndsAllWriting(t *testing.T) {
	t.Parallel()
	b := newBooks()
	j, _, err := openJournal(t.TempDir(), func(r record) { b.apply(r) })
	if err != nil {
		t.Fatal(err)
	}
	good := j.file
	defer good.Close()

	// A file that cannot be written, as on a full disk.
	if j.file, err = os.Open(good.Name()); err != nil {
		t.Fatal(err)
	}
	c := record{Key: "k", Request: "d", Charge: &Charge{ID: "ch_1"}}
	if err := j.append(c); err == nil || len(b.charges.all) != 0 {
		t.Errorf("%v, %d charges", err, len(b.charges.all))
	}
	select {
	case <-j.failed:
	default:
		t.Error("failed is not closed")
	}

	if err := j.append(c); err == nil || !strings.Contains(err.Error(), "write the books") {
		t.Errorf("later: %v", err)
	}
	if err := j.close(); err == nil {
		t.Error("close says nothing")
	}
}
