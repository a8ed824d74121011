package fakepsp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"
)

// record is one line of the journal: a charge or refund with its key, an event that was delivered,
// or a fault that was injected.
type record struct {
	At      time.Time `json:"at,omitzero"`
	Key     string    `json:"key,omitempty"`
	Request string    `json:"request,omitempty"` // its digest
	Charge  *Charge   `json:"charge,omitempty"`
	Refund  *Refund   `json:"refund,omitempty"`
	Events  bool      `json:"events,omitempty"` // there was a webhook URL

	Delivered string `json:"delivered,omitempty"` // the id of an event
	Fault     string `json:"fault,omitempty"`
}

// A line is {"crc":"01234567",…}: JSON for people, with a checksum of the rest for the reader.
const (
	beforeSum = `{"crc":"`
	afterSum  = `",`
	sumEnd    = len(beforeSum) + 8
	bodyStart = sumEnd + len(afterSum)
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// line returns the line of the journal, its end included.
func (r record) line() ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("write the books: %w", err)
	}

	line := make([]byte, 0, len(body)+bodyStart)
	line = fmt.Appendf(line, "%s%08x%s", beforeSum, crc32.Checksum(body[1:], castagnoli), afterSum)
	line = append(line, body[1:]...)
	return append(line, '\n'), nil
}

// errDamaged is why a journal cannot be read.
var errDamaged = errors.New("damaged")

// parseLine reads a line without its end.
func parseLine(line []byte) (record, error) {
	if len(line) < bodyStart || string(line[:len(beforeSum)]) != beforeSum ||
		string(line[sumEnd:bodyStart]) != afterSum {
		return record{}, fmt.Errorf("%w: not a line of these books", errDamaged)
	}

	body := line[bodyStart:]
	if fmt.Sprintf("%08x", crc32.Checksum(body, castagnoli)) != string(line[len(beforeSum):sumEnd]) {
		return record{}, fmt.Errorf("%w: its checksum is wrong", errDamaged)
	}

	var r record
	d := json.NewDecoder(bytes.NewReader(append([]byte{'{'}, body...)))
	d.DisallowUnknownFields() // written by a later version
	if err := d.Decode(&r); err != nil {
		return record{}, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if d.InputOffset() != int64(len(body)+1) {
		return record{}, fmt.Errorf("%w: more than one value", errDamaged)
	}
	return r, r.check()
}

// check reports a line with the right checksum that says nothing, or too much.
func (r record) check() error {
	kinds := 0
	for _, is := range []bool{r.Charge != nil, r.Refund != nil, r.Delivered != "", r.Fault != ""} {
		if is {
			kinds++
		}
	}

	booked := r.Charge != nil || r.Refund != nil
	if kinds != 1 || booked && (r.Key == "" || r.Request == "") {
		return fmt.Errorf("%w: neither a charge nor a refund, a delivery or a fault", errDamaged)
	}
	return nil
}

// readJournal passes every record to apply and returns the size of the file without a torn last
// line.
func readJournal(file io.Reader, apply func(record)) (good int64, err error) {
	lines := bufio.NewReaderSize(file, 64<<10)

	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return good, nil
		}
		if err != nil {
			return 0, err
		}

		r, err := parseLine(line[:len(line)-1])
		if err != nil {
			return 0, fmt.Errorf("line %d, at byte %d: %w", n, good, err)
		}
		apply(r)
		good += int64(len(line))
	}
}
