package jobs

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/shoal-ml/shoal/launcher"
)

// How commands follow files of a run that grow.

// tail reads what is appended to a file by and by. One goroutine uses it. Its methods read the file
// and do not wait for more; nothing has to be closed.
type tail struct {
	path   string
	offset int64 // number of bytes from the start that need not come again
}

// newTail returns a tail that begins after what the file holds now. A file that does not exist
// holds nothing.
func newTail(path string) *tail {
	t := &tail{path: path}
	if info, err := os.Stat(path); err == nil {
		t.offset = info.Size()
	}
	return t
}

// readNew opens the file, passes what is new in it to use, piece by piece, and closes it. use
// returns the number of bytes that it is done with, and the other bytes come again; it must not
// keep the piece. A file that does not exist has nothing new.
func (t *tail) readNew(use func(piece []byte) (int, error)) error {
	f, err := os.Open(t.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, 256<<10)
	for {
		n, err := f.ReadAt(buf, t.offset)
		taken := 0
		if n > 0 {
			var fault error
			if taken, fault = use(buf[:n]); fault != nil {
				return fault
			}
			t.offset += int64(taken)
		}
		switch {
		case err != nil && !errors.Is(err, io.EOF):
			return err
		case err != nil || taken == 0:
			return nil
		}
	}
}

// readEntries calls show with each new entry of a ledger, until show fails. An entry that is not
// whole yet comes again.
func (t *tail) readEntries(show func(e launcher.Entry) error) error {
	return t.readNew(func(piece []byte) (int, error) {
		list, n, err := launcher.ParseLedger(piece)
		for _, e := range list {
			if err == nil {
				err = show(e)
			}
		}
		return n, err
	})
}
