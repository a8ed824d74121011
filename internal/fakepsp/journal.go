package fakepsp

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// journal is the file of the books. Records that arrive while the disk is busy share the next
// fsync.
type journal struct {
	file   *os.File
	apply  func(record) // called in the order of the file, once the record is on disk
	wake   chan struct{}
	ended  chan struct{} // closed when the writer has ended
	failed chan struct{} // closed when the file cannot be written

	mu     sync.Mutex
	next   *batch // collects records while the one before is written
	closed bool
	err    error // why the file cannot be written
}

// batch is what one write takes to the file.
type batch struct {
	lines   []byte
	records []record
	sync    bool // someone waits for the disk
	done    chan struct{}
	err     error
}

var errClosed = errors.New("the books are closed")

// openJournal reads the file of dir back through apply, which later gets the new records, too. It
// returns how many bytes of a torn last line it cut off.
func openJournal(dir string, apply func(record)) (j *journal, torn int64, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, 0, fmt.Errorf("open the books: %w", err)
	}

	path := filepath.Join(dir, "journal.jsonl")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("open the books: %w", err)
	}

	if torn, err = prepare(file, dir, apply); err != nil {
		return nil, 0, errors.Join(fmt.Errorf("open the books %s: %w", path, err), file.Close())
	}

	j = &journal{
		file: file, apply: apply, next: &batch{done: make(chan struct{})},
		wake: make(chan struct{}, 1), ended: make(chan struct{}), failed: make(chan struct{}),
	}
	go j.write()
	return j, torn, nil
}

// prepare locks and reads the file, and makes its directory entry last.
func prepare(file *os.File, dir string, apply func(record)) (torn int64, err error) {
	// Two programs with the same books would not know each other's keys.
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return 0, fmt.Errorf("another program uses them: %w", err)
	}

	good, err := readJournal(file, apply)
	if err != nil {
		return 0, err
	}

	info, err := file.Stat()
	if err != nil {
		return 0, err
	}

	// A line without its end was never answered: the crash came before its fsync.
	if torn = info.Size() - good; torn > 0 {
		if err := file.Truncate(good); err != nil {
			return 0, err
		}
	}

	// What was read but not yet synced may be answered from now on.
	if err := file.Sync(); err != nil {
		return 0, err
	}
	return torn, syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// append returns when r is on disk and applied. After an error it may or may not be on disk.
func (j *journal) append(r record) error {
	b, err := j.add(r, true)
	if err != nil {
		return err
	}

	<-b.done
	return b.err
}

// note writes r soon, without waiting. A crash may lose it.
func (j *journal) note(r record) { _, _ = j.add(r, false) }

func (j *journal) add(r record, sync bool) (*batch, error) {
	line, err := r.line()
	if err != nil {
		return nil, err
	}

	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.err != nil:
		return nil, j.err
	case j.closed:
		return nil, errClosed
	}

	b := j.next
	b.lines = append(b.lines, line...)
	b.records = append(b.records, r)
	b.sync = b.sync || sync

	select {
	case j.wake <- struct{}{}:
	default: // the writer has been told already
	}
	return b, nil
}

// write takes one batch after the other to the disk, until close.
func (j *journal) write() {
	defer close(j.ended)

	for range j.wake {
		j.mu.Lock()
		b := j.next
		j.next = &batch{done: make(chan struct{})}
		j.mu.Unlock()

		if b.err = j.flush(b); b.err != nil {
			j.fail(b.err)
		}
		close(b.done)
	}
}

func (j *journal) flush(b *batch) error {
	if j.err != nil {
		return j.err // only this goroutine sets it
	}
	if _, err := j.file.Write(b.lines); err != nil {
		return fmt.Errorf("write the books: %w", err)
	}

	// Crash point: written, not synced. No one was answered; the next start may find the records, and
	// then they count.
	if b.sync {
		if err := j.file.Sync(); err != nil {
			return fmt.Errorf("write the books: %w", err)
		}
	}

	for _, r := range b.records {
		j.apply(r)
	}
	return nil
}

// fail ends all writing. After a failed fsync the kernel may drop what it could not write, and a
// second fsync would succeed.
func (j *journal) fail(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err == nil {
		j.err = err
		close(j.failed)
	}
}

// close writes what was added and closes the file. It returns why the file could not be written, if
// so.
func (j *journal) close() error {
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return nil
	}
	j.closed = true
	close(j.wake) // a pending wake is still received
	j.mu.Unlock()

	<-j.ended
	return errors.Join(j.err, j.file.Sync(), j.file.Close())
}
