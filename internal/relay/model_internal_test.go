package relay

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// snapshot is a pg_snapshot: xmax is one more than the latest COMPLETED xid, xip are the running ones below it.
type snapshot struct {
	xmin, xmax int64
	xip        []int64
}

func (s snapshot) String() string {
	xip := make([]string, len(s.xip))
	for i, x := range s.xip {
		xip[i] = strconv.FormatInt(x, 10)
	}
	return fmt.Sprintf("%d:%d:%s", s.xmin, s.xmax, strings.Join(xip, ","))
}

func parse(text string) (s snapshot) {
	fields := strings.Split(text, ":")
	s.xmin, _ = strconv.ParseInt(fields[0], 10, 64)
	s.xmax, _ = strconv.ParseInt(fields[1], 10, 64)
	for _, x := range strings.FieldsFunc(fields[2], func(r rune) bool { return r == ',' }) {
		xid, _ := strconv.ParseInt(x, 10, 64)
		s.xip = append(s.xip, xid)
	}
	return s
}

func (s snapshot) shows(xid int64) bool { return xid < s.xmax && !slices.Contains(s.xip, xid) }

type row struct {
	Message
	xid int64
}

// model is what the cursor relies on of Postgres, and nothing else.
type model struct {
	nextID, nextXID, completed int64
	open                       [6]struct{ xid, last int64 } // an open transaction and the last xid of its savepoints; 0: none yet
	rows                       []row                        // those of running and committed transactions, by id
	limit                      int
	position                   Position
	cursor                     func(*model) ([]Message, Position)
}

func newModel(limit int, cursor func(*model) ([]Message, Position)) *model {
	return &model{nextID: 1, nextXID: 3, completed: 2, limit: limit, cursor: cursor, position: Position{Seen: "3:3:"}}
}

func (m *model) begin(int) {}

func (m *model) touch(slot int) {
	if t := &m.open[slot]; t.xid == 0 {
		t.xid, t.last = m.nextXID, m.nextXID
		m.nextXID++
	}
}

func (m *model) write(slot int, e Message) {
	m.touch(slot)
	e.ID = m.nextID
	m.nextID++
	m.rows = append(m.rows, row{e, m.open[slot].xid})
}

// savepoint takes an xid of its own. Rolled back to, that xid is completed at once; released, it is completed with the
// transaction, whose xid the row has in either case.
func (m *model) savepoint(slot int, e Message, keep bool) {
	m.touch(slot)
	m.open[slot].last = m.nextXID
	m.nextXID++
	m.write(slot, e)
	if !keep {
		m.completed = max(m.completed, m.open[slot].last)
		m.rows = m.rows[:len(m.rows)-1] // its id stays drawn
	}
}

func (m *model) end(slot int, commit bool) {
	t := m.open[slot]
	m.open[slot].xid, m.open[slot].last = 0, 0
	if t.xid == 0 {
		return
	}
	m.completed = max(m.completed, t.last)
	if !commit {
		m.rows = slices.DeleteFunc(m.rows, func(r row) bool { return r.xid == t.xid })
	}
}

func (m *model) read() ([]Message, Position) {
	var batch []Message
	batch, m.position = m.cursor(m)
	return batch, m.position
}

func (m *model) snapshot() snapshot {
	s := snapshot{xmin: m.completed + 1, xmax: m.completed + 1}
	for _, t := range m.open {
		if t.xid != 0 && t.xid < s.xmax {
			s.xip = append(s.xip, t.xid)
			s.xmin = min(s.xmin, t.xid)
		}
	}
	slices.Sort(s.xip)
	return s
}

// visible returns the first limit rows by id that a statement sees now and that where is true of.
func (m *model) visible(limit int, where func(row) bool) (found []Message) {
	now := m.snapshot()
	for _, r := range m.rows {
		if len(found) < limit && now.shows(r.xid) && where(r) {
			found = append(found, r.Message)
		}
	}
	return found
}

func (m *model) newRows() []Message {
	return m.visible(m.limit, func(r row) bool { return r.ID > m.position.Last })
}

// stragglers is the branch of the statement of that name: in xip, or at and above xmax.
func (m *model) stragglers(limit int, and func(row) bool) []Message {
	seen := parse(m.position.Seen)
	return m.visible(limit, func(r row) bool {
		return r.ID <= m.position.Last && (slices.Contains(seen.xip, r.xid) || r.xid >= seen.xmax) && and(r)
	})
}

func all(row) bool { return true }

// theCursor is the two statements of newReader, and advance itself.
func theCursor(m *model) ([]Message, Position) {
	p := m.position
	var found []Message
	if p.ChunkSeen == "" {
		found = append(m.stragglers(m.limit+1, all), m.newRows()...)
	} else {
		found = m.stragglers(m.limit+1, func(r row) bool { return r.ID > p.ChunkAfter && parse(p.ChunkSeen).shows(r.xid) })
	}
	return cut(p, found, m.snapshot().String(), m.limit)
}

// cut sends what the limit allows.
func cut(p Position, found []Message, snapshot string, limit int) ([]Message, Position) {
	n := min(limit, len(found))
	return found[:n], advance(p, found, n, snapshot)
}

// weakCursors are those that others use, and near misses of ours, each with the promises that it breaks.
var weakCursors = map[string]struct {
	breaks []fault
	read   func(*model) ([]Message, Position)
}{
	"id > last": {[]fault{lost}, func(m *model) ([]Message, Position) {
		return cut(m.position, m.newRows(), "3:3:", m.limit)
	}},
	"(xid, id) below xmin": {[]fault{outOfOrder, late}, func(m *model) ([]Message, Position) {
		now, p, found := m.snapshot(), m.position, []row(nil)
		after := func(r row) int { return cmp.Or(cmp.Compare(r.xid, p.ChunkAfter), cmp.Compare(r.ID, p.Last)) }
		for _, r := range m.rows {
			if r.xid < now.xmin && after(r) > 0 {
				found = append(found, r)
			}
		}
		slices.SortFunc(found, func(a, b row) int { return cmp.Or(cmp.Compare(a.xid, b.xid), cmp.Compare(a.ID, b.ID)) })
		if len(found) == 0 {
			return nil, p
		}
		return []Message{found[0].Message}, Position{Last: found[0].ID, ChunkAfter: found[0].xid}
	}},
	"stragglers of xip only": {[]fault{lost}, func(m *model) ([]Message, Position) {
		xip := parse(m.position.Seen).xip
		found := append(m.stragglers(1_000, func(r row) bool { return slices.Contains(xip, r.xid) }), m.newRows()...)
		return cut(m.position, found, m.snapshot().String(), 1_000)
	}},
	"stragglers from xmax only, as a standby has no xip": {[]fault{lost}, func(m *model) ([]Message, Position) {
		found := append(m.stragglers(1_000, all), m.newRows()...)
		return cut(m.position, found, snapshot{xmin: m.completed + 1, xmax: m.completed + 1}.String(), 1_000)
	}},
	"the limit cuts stragglers": {[]fault{lost}, func(m *model) ([]Message, Position) {
		found := append(m.stragglers(m.limit, all), m.newRows()...)
		return cut(m.position, found[:min(m.limit, len(found))], m.snapshot().String(), m.limit)
	}},
	"each chunk in a snapshot of its own": {[]fault{lost}, func(m *model) ([]Message, Position) {
		p := m.position
		found := m.stragglers(m.limit+1, func(r row) bool { return r.ID > p.ChunkAfter })
		if p.ChunkSeen == "" {
			found = append(found, m.newRows()...)
		}
		if p.ChunkSeen != "" {
			p.ChunkSeen = m.snapshot().String() // the last chunk's becomes the position's
		}
		return cut(p, found, m.snapshot().String(), m.limit)
	}},
	"new rows beside a chunk": {[]fault{doubled, outOfOrder}, func(m *model) ([]Message, Position) {
		batch, next := theCursor(m)
		if fresh := m.newRows(); next.ChunkSeen != "" && len(fresh) > 0 {
			batch, next.Last = append(slices.Clone(batch), fresh...), fresh[len(fresh)-1].ID
		}
		return batch, next
	}},
}

const histories = 400

// tellAll returns all faults of all histories.
func tellAll(cursor func(*model) ([]Message, Position)) map[fault]int {
	found := map[fault]int{}
	for seed := range uint64(histories) {
		for fault, events := range tell(seed, 300, newModel(int(1+seed%3), cursor)) {
			found[fault] += events
		}
	}
	return found
}

func TestCursorReadsEachRowOnceInOrder(t *testing.T) {
	t.Parallel()
	if found := tellAll(theCursor); len(found) > 0 {
		t.Errorf("faults: %v", found)
	}
}

// The model is worth something only if it finds what is wrong with weaker cursors.
func TestModelFindsFaultsOfWeakerCursors(t *testing.T) {
	t.Parallel()
	for name, weak := range weakCursors {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := tellAll(weak.read)
			t.Logf("faults: %v", found)
			for _, fault := range weak.breaks {
				if found[fault] == 0 {
					t.Errorf("no history shows an event %s", fault)
				}
			}
		})
	}
}
