package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"sync"
)

// maxOpenFiles is with how many open files those that no call uses are closed before another is
// opened.
const maxOpenFiles = 256

// A handle is an open file.
type handle interface {
	io.ReaderAt
	io.Closer
}

// A fileSet is the files of a checkpoint as regions of a move. Several goroutines may use it, and
// wait for the files; names and open are set before they do. Files are opened when they are needed,
// and closed when there are too many, and by Close.
type fileSet struct {
	names []string                          // file of each region
	open  func(name string) (handle, error) // opens a file by its name

	mu    sync.Mutex        // guards files, and is held while a file is opened or closed
	files map[int]*openFile // open files, by region; nil = none was opened
}

// An openFile is an open file and the number of calls that use it.
type openFile struct {
	handle
	users int // guarded by mu of the fileSet
}

// Name returns the file of a region.
func (m *fileSet) Name(region int) string { return m.names[region] }

// Read implements move.Source: it fills b with the bytes of a file from an offset on. Fewer bytes
// are an error.
func (m *fileSet) Read(region int, b []byte, at int64) error {
	return m.withFile(region, func(h handle) error {
		n, err := h.ReadAt(b, at)
		if n == len(b) {
			return nil
		}
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("%s, byte %d: %d bytes are due, %d are there: %w", m.names[region], at,
			len(b), n, err)
	})
}

// Write implements move.Target: it writes b into a file, which must be open for writing, from an
// offset on.
func (m *fileSet) Write(region int, b []byte, at int64) error {
	return m.withFile(region, func(h handle) error {
		_, err := h.(io.WriterAt).WriteAt(b, at)
		return err
	})
}

// withFile calls f, without mu, with the open file of a region. Several calls may use one file at
// once, so f must not depend on the position in the file.
func (m *fileSet) withFile(region int, f func(h handle) error) error {
	h, err := m.acquire(region)
	if err != nil {
		return err
	}
	err = f(h.handle)
	m.mu.Lock()
	h.users--
	m.mu.Unlock()
	return err
}

// acquire returns the open file of a region, with one more user, whom the caller takes off again.
// It locks mu, opens the file if need be, and may first close files that nobody uses.
func (m *fileSet) acquire(region int) (*openFile, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.files[region]
	if h == nil {
		if len(m.files) >= maxOpenFiles {
			if err := m.closeIdle(); err != nil {
				return nil, err
			}
		}
		opened, err := m.open(m.names[region])
		if err != nil {
			return nil, err
		}
		if m.files == nil {
			m.files = map[int]*openFile{}
		}
		h = &openFile{handle: opened}
		m.files[region] = h
	}
	h.users++
	return h, nil
}

// closeIdle closes the files that no call uses. The caller holds mu.
func (m *fileSet) closeIdle() error {
	var errs []error
	for region, h := range m.files {
		if h.users == 0 {
			errs = append(errs, h.Close())
			delete(m.files, region)
		}
	}
	return errors.Join(errs...)
}

// Close closes all files. No call may use them meanwhile; a later one opens its file again.
func (m *fileSet) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closeIdle()
}
