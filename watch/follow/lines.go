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

const (
	// maxLine is how many bytes a line has at most that is read.
	maxLine = history.MaxLine
	// maxWhole is up to how many bytes of a file are read whole. Of a longer one, parts in equal
	// distances are read, and its end whole, which together are as much.
	maxWhole = 4 << 20
	// sampleParts is in how many parts what is read of a longer file is divided.
	sampleParts = 256
	// pieceSize is how many bytes are read at a time.
	pieceSize = 256 << 10
)

// lines reads what is appended to a file, line by line. One goroutine uses it. Nothing is open
// between two reads.
type lines struct {
	path   string
	whole  int64       // up to how many bytes it is read whole
	file   fs.FileInfo // as it was when it was last read; nil = it was not there
	offset int64       // bytes that were read
	begun  []byte      // of a line that has no end yet
	skip   bool        // the line that has no end yet is too long
}

// taker takes what comes of a file.
type taker struct {
	line    func(line []byte)
	reset   func()                 // the file is another one, of which all comes anew
	tooLong func()                 // a line is left out
	sampled func(size, read int64) // only parts of the file are read
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

// read passes what is new in the file. It waits for the disk alone. The error wraps
// fs.ErrNotExist where there is no file.
func (l *lines) read(take taker) error {
	f, info, err := openRegular(l.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if l.file != nil && (!os.SameFile(l.file, info) || info.Size() < l.offset) {
		*l = lines{path: l.path, whole: l.whole}
		take.reset()
	}
	first := l.file == nil
	l.file = info
	if first && info.Size() > l.whole {
		if err := l.sample(f, info.Size(), take); err != nil {
			return err
		}
	}
	return l.readOn(f, take)
}

// readOn reads from the offset to the end of the file.
func (l *lines) readOn(f io.ReaderAt, take taker) error {
	buf := make([]byte, pieceSize)
	for {
		n, err := f.ReadAt(buf, l.offset)
		l.offset += int64(n)
		l.cut(buf[:n], take)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// cut cuts what was read into lines.
func (l *lines) cut(piece []byte, take taker) {
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

// sample reads parts of a long file, and leaves its end to be read whole.
func (l *lines) sample(f io.ReaderAt, size int64, take taker) error {
	end := l.whole / 4 // bytes at the end of the file that are read whole
	size -= end
	buf := make([]byte, (l.whole-end)/sampleParts)
	for i := range int64(sampleParts) {
		n, err := f.ReadAt(buf, size/sampleParts*i)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		_, part, _ := bytes.Cut(buf[:n], []byte("\n")) // the first line may be torn
		for len(part) > 0 {
			line, rest, ended := bytes.Cut(part, []byte("\n"))
			if part = rest; ended && len(bytes.TrimSpace(line)) > 0 {
				take.line(line)
			}
		}
	}
	l.offset = size
	buf = make([]byte, pieceSize)
	n, err := f.ReadAt(buf, l.offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if begin := bytes.IndexByte(buf[:n], '\n'); begin >= 0 {
		l.offset += int64(begin) + 1
	}
	take.sampled(size+end, l.whole)
	return nil
}

// isTorn reports whether the last line that was read has no end.
func (l *lines) isTorn() bool { return len(l.begun) > 0 || l.skip }
