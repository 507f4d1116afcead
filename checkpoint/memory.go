package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"sync"
)

// mostOpen bounds the files that are open at a time.
const mostOpen = 256

// handle is an open file.
type handle interface {
	io.ReaderAt
	io.Closer
}

// memory is the files of a checkpoint as regions of a move, for several goroutines at once.
type memory struct {
	names []string
	open  func(name string) (handle, error)

	mu    sync.Mutex
	files map[int]*held
}

// held is an open file and how many use it just now.
type held struct {
	handle
	users int
}

// Name is the file that is a region.
func (m *memory) Name(region int) string { return m.names[region] }

// Read implements move.Source.
func (m *memory) Read(region int, b []byte, at int64) error {
	return m.use(region, func(h handle) error {
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

// Write implements move.Target.
func (m *memory) Write(region int, b []byte, at int64) error {
	return m.use(region, func(h handle) error {
		_, err := h.(io.WriterAt).WriteAt(b, at)
		return err
	})
}

// use calls f with the file of a region, open.
func (m *memory) use(region int, f func(h handle) error) error {
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

func (m *memory) acquire(region int) (*held, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.files[region]
	if h == nil {
		if len(m.files) >= mostOpen {
			if err := m.closeIdle(); err != nil {
				return nil, err
			}
		}
		opened, err := m.open(m.names[region])
		if err != nil {
			return nil, err
		}
		if m.files == nil {
			m.files = map[int]*held{}
		}
		h = &held{handle: opened}
		m.files[region] = h
	}
	h.users++
	return h, nil
}

// closeIdle closes what nobody uses just now. It is called with mu held.
func (m *memory) closeIdle() error {
	var errs []error
	for region, h := range m.files {
		if h.users == 0 {
			errs = append(errs, h.Close())
			delete(m.files, region)
		}
	}
	return errors.Join(errs...)
}

// Close closes all files. Nobody uses them any more.
func (m *memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closeIdle()
}
