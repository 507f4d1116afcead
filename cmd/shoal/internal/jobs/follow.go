package jobs

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/shoal-ml/shoal/launcher"
)

// tail reads what is appended to a file by and by.
type tail struct {
	path   string
	offset int64 // number of bytes from the start that need not come again
}

// newTail makes a tail that begins behind what the file has now.
func newTail(path string) *tail {
	t := &tail{path: path}
	if info, err := os.Stat(path); err == nil {
		t.offset = info.Size()
	}
	return t
}

// read hands what is new to take, piece by piece; take says how much of it need not come again. A
// file that does not exist has nothing new.
func (t *tail) read(take func(piece []byte) (int, error)) error {
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
			if taken, fault = take(buf[:n]); fault != nil {
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

// entries hands the new lines of a run's ledger to show.
func (t *tail) entries(show func(e launcher.Entry) error) error {
	return t.read(func(piece []byte) (int, error) {
		list, n, err := launcher.ParseLedger(piece)
		for _, e := range list {
			if err == nil {
				err = show(e)
			}
		}
		return n, err
	})
}
