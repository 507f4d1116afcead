// Package senselog writes sense.jsonl, what is kept of the steps of a job, into the directory of a
// run, and keeps it below a limit of bytes. A job goes on without the file where it cannot be
// written.
package senselog

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/sense/history"
)

// Log appends rows to a file. New makes one. Any goroutine may use it; its methods do I/O while
// they hold its lock.
type Log struct {
	path  string
	limit int64                            // bytes of the file at most
	open  func(path string) (*file, error) // opens the file, to append to it

	mu     sync.Mutex // guards what follows
	file   *file      // nil = no row was written yet
	size   int64      // bytes of the file
	pause  int        // rows to leave out before the file is tried to be made smaller again
	told   bool       // Append has returned an error
	closed bool
}

// file is what a Log needs of an open file.
type file struct {
	write    func(b []byte) (int, error)
	truncate func(size int64) error
	close    func() error
}

// pauseRows is how many rows are left out after the file could not be made smaller, which takes
// reading all of it: an hour.
const pauseRows = 360

// New returns a Log that makes the file with the first row.
func New(path string) *Log {
	return &Log{path: path, limit: history.MaxFile, open: openFile}
}

// openFile makes a file, or opens it where it is, to append to it.
func openFile(path string) (*file, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &file{write: f.Write, truncate: f.Truncate, close: f.Close}, nil
}

// Append appends a row that came at now. What cannot be written is left out, and the next row tried
// again. Only the first error is returned, since people need it once.
func (l *Log) Append(r history.Row, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	r.Time = now.UTC().Format(time.RFC3339Nano)
	err := l.append(r.Encode())
	if err == nil || l.told {
		return nil
	}
	l.told = true
	return fmt.Errorf("%w; the job goes on, and shoal sim --run will know less of it", err)
}

// append appends a line, after making the file smaller where it would become too large. A line that
// is written in part is taken back. l.mu is held.
func (l *Log) append(line []byte) (err error) {
	if l.pause > 0 {
		l.pause--
		return nil
	}
	if l.file != nil && l.size+int64(len(line)) > l.limit {
		if err := l.compact(); err != nil {
			l.pause = pauseRows
			return err
		}
	}
	if l.file == nil {
		if l.file, err = l.open(l.path); err != nil {
			l.file = nil
			return fmt.Errorf("the steps of the job cannot be kept: %w", err)
		}
	}
	n, err := l.file.write(line)
	if err == nil {
		l.size += int64(n)
		return nil
	}
	if n > 0 && l.file.truncate(l.size) != nil {
		l.size += int64(n)
		_, _ = l.file.write([]byte("\n")) // so that only this line cannot be read
		l.size++
	}
	return fmt.Errorf("the steps of the job cannot be kept: %w", err)
}

// compact replaces the file by a smaller one, or leaves it as it is. l.mu is held.
func (l *Log) compact() error {
	text, err := os.ReadFile(l.path)
	if err != nil {
		return fmt.Errorf("what is kept of the steps cannot be made smaller: %w", err)
	}
	text = history.Compact(text, int(l.limit))
	unnamed := l.path + ".new"
	if err = os.WriteFile(unnamed, text, 0o600); err == nil {
		err = os.Rename(unnamed, l.path)
	}
	if err != nil {
		return fmt.Errorf("what is kept of the steps cannot be made smaller: %w",
			errors.Join(err, os.Remove(unnamed)))
	}
	_ = l.file.close() // the file that has no name any more
	l.file, l.size = nil, int64(len(text))
	return nil
}

// Close closes the file. Rows that come later are left out.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.file == nil {
		return nil
	}
	return l.file.close()
}
