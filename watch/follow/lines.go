package follow

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/shoal-ml/shoal/sense/history"
)

// Files that grow while somebody writes them, read as far as they are. The functions without a
// receiver run on the goroutine of the Follower, and keep nothing.

const (
	// maxLine is how many bytes a line has at most that is read.
	maxLine = history.MaxLine
	// maxReports is up to how many bytes of what workers reported are read whole. Of a longer
	// file, parts in equal distances are read, and its end whole, which together are as much.
	maxReports = 4 << 20
	// maxLedger is how many bytes of the end of the ledger are read, without a gap, so that no end
	// of a change is missing.
	maxLedger = 16 << 20
	// maxRough is as maxReports, for a first look at any of the files.
	maxRough = 1 << 20
	// sampleSize is how many bytes such a part has.
	sampleSize = 8 << 10
	// pieceSize is how many bytes are read at a time.
	pieceSize = 256 << 10
	// checkSize is how many bytes before the offset must be as they were when a file is read on.
	checkSize = 64
)

// lines reads what is appended to a file, line by line. One goroutine uses it. Nothing is open
// between two reads.
type lines struct {
	path    string
	whole   int64       // up to how many bytes it is read whole
	endOnly bool        // of a longer file only the end is read, instead of parts of all of it
	partly  bool        // it was longer
	file    fs.FileInfo // as it was when it was last read; nil = it was not there
	offset  int64       // bytes that were read
	before  []byte      // the last ones of these, at most checkSize
	begun   []byte      // of a line that has no end yet
	skip    bool        // the line that has no end yet is left out
}

// taker takes what comes of a file.
type taker struct {
	line    func(line []byte)
	reset   func()                 // the file is another one, of which all comes anew
	tooLong func()                 // a line is left out
	partly  func(size, read int64) // not all of the file is read
}

// openRegular opens a file of a run; the caller closes it. What is no regular file is refused,
// since opening a pipe would block.
func openRegular(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// readNew passes what is new in the file. It waits for the disk alone. The error wraps
// fs.ErrNotExist where there is no file.
func (l *lines) readNew(take taker) error {
	f, info, err := openRegular(l.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if l.file != nil && !l.continuesFile(f, info) {
		*l = lines{path: l.path, whole: l.whole, endOnly: l.endOnly}
		take.reset()
	}
	first := l.file == nil
	l.file = info
	if first && info.Size() > l.whole {
		if err := l.skipTo(f, info.Size(), take); err != nil {
			return err
		}
	}
	return l.readFromOffset(f, take)
}

// continuesFile reports whether a file is the one that was read, with nothing or more after that.
// One that replaces it may have its number of an inode, and be longer.
func (l *lines) continuesFile(f io.ReaderAt, info fs.FileInfo) bool {
	if !os.SameFile(l.file, info) || info.Size() < l.offset {
		return false
	}
	now := make([]byte, len(l.before))
	_, err := f.ReadAt(now, l.offset-int64(len(now)))
	return (err == nil || errors.Is(err, io.EOF)) && bytes.Equal(now, l.before)
}

// readFromOffset reads from the offset to the end of the file.
func (l *lines) readFromOffset(f io.ReaderAt, take taker) error {
	buf := make([]byte, pieceSize)
	for {
		n, err := f.ReadAt(buf, l.offset)
		l.offset += int64(n)
		l.before = append(l.before, buf[max(n-checkSize, 0):n]...)
		l.before = l.before[max(len(l.before)-checkSize, 0):]
		l.cutIntoLines(buf[:n], take)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// cutIntoLines cuts what was read, which follows what was read before, into lines, and gives take
// those that are whole and not empty.
func (l *lines) cutIntoLines(piece []byte, take taker) {
	for len(piece) > 0 {
		line, rest, ended := bytes.Cut(piece, []byte("\n"))
		piece = rest
		if !l.skip && len(l.begun)+len(line) > maxLine {
			l.skip, l.begun = true, nil
			take.tooLong()
		}
		if !l.skip {
			l.begun = append(l.begun, line...)
		}
		if !ended {
			return
		}
		if len(bytes.TrimSpace(l.begun)) > 0 {
			take.line(l.begun)
		}
		l.begun, l.skip = l.begun[:0], false
	}
}

// skipTo leaves the end of a long file to be read whole, and reads parts of what is before that,
// unless only the end is wanted.
func (l *lines) skipTo(f io.ReaderAt, size int64, take taker) error {
	end := l.whole // bytes at the end of the file
	if !l.endOnly {
		end /= 4
		if err := sampleLines(f, size-end, (l.whole-end)/sampleSize, take); err != nil {
			return err
		}
	}
	l.offset, l.skip = size-end-1, true // to the end of the line that has this byte
	l.partly = true
	take.partly(size, l.whole)
	return nil
}

// sampleLines passes the lines that are whole in some parts of the first bytes of a file.
func sampleLines(f io.ReaderAt, size, parts int64, take taker) error {
	buf := make([]byte, sampleSize)
	for i := range parts {
		n, err := f.ReadAt(buf, size/parts*i)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		rest := buf[:n]
		if i > 0 { // the first line may be torn
			_, rest, _ = bytes.Cut(rest, []byte("\n"))
		}
		for len(rest) > 0 {
			line, more, ended := bytes.Cut(rest, []byte("\n"))
			if rest = more; ended && len(bytes.TrimSpace(line)) > 0 {
				take.line(line)
			}
		}
	}
	return nil
}

// isTorn reports whether the last line that was read has no end.
func (l *lines) isTorn() bool { return len(l.begun) > 0 || l.skip }
