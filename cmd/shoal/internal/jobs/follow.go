package jobs

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/shoal-ml/shoal/launcher/runs"
)

// How commands follow files of a run that grow. newTail asks for the size of a file.

// tail reads what is appended to a file by and by. One goroutine uses it. Its methods read the file
// and do not wait for more; nothing has to be closed.
type tail struct {
	path    string
	offset  int64 // number of bytes from the start that need not come again
	damaged int   // entries of a ledger that could not be read
}

// maxPiece is how many bytes of a file are read at once. No entry of a ledger is as long.
const maxPiece = 256 << 10

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
	buf := make([]byte, maxPiece)
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
// whole yet comes again. What cannot be read is counted in t.damaged, and left out.
func (t *tail) readEntries(show func(e runs.Entry) error) error {
	return t.readNew(func(piece []byte) (n int, err error) {
		list, n, damaged := runs.ParseLedger(piece)
		t.damaged += damaged
		for _, e := range list {
			if err == nil {
				err = show(e)
			}
		}
		if n == 0 && len(piece) == maxPiece { // within a line that no launcher has written
			n = len(piece)
		}
		return n, err
	})
}
