package arena

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/shoal-ml/shoal/internal/cgroup"
)

// The memory of an arena. The functions without a receiver may be called on any goroutine: they
// make system calls, which take long where many pages are made, and keep nothing.

const pageBytes = 4096

// Segment is shared memory with a fixed size. Any goroutine may call Fill and FD; Close is for the
// owner, when nobody uses Mem. What is in Mem belongs to those who share it.
type Segment struct {
	Mem []byte // the mapped memory; nil after Close
	fd  int    // the memfd behind Mem

	// filling keeps Close from unmapping Mem under Fill: it is held for reading while Fill makes
	// pages, and for writing while Close unmaps them.
	filling sync.RWMutex
	// filled is the number of bytes from the start whose pages are made, or being made. It can be
	// larger than the segment.
	filled atomic.Int64
}

// NewSegment makes a sealed memfd of at least n bytes (rounded up to pages), reserves its pages, so
// that a later access cannot fail, and maps it. They are huge pages where the kernel has some, and
// lie on these memory nodes, on several in turns, where these have room; no nodes = wherever they
// come to lie. name is what /proc/PID/maps shows. The caller closes it.
func NewSegment(name string, n int64, nodes ...int) (*Segment, error) {
	return newSegment(name, n, 0, false, nodes)
}

// NewLateSegment is NewSegment with pages that come later: with Fill, or as they are touched. Where
// the kernel promises no more than it has, and so may refuse a touch, they come at once.
func NewLateSegment(name string, n int64, nodes ...int) (*Segment, error) {
	return newSegment(name, n, 0, overcommits(), nodes)
}

// NewResult is NewSegment for memory that only this process writes: who gets its descriptor can map
// it to read, or a private copy of it.
func NewResult(name string, n int64, nodes ...int) (*Segment, error) {
	return newSegment(name, n, unix.F_SEAL_FUTURE_WRITE, false, nodes)
}

// newSegment makes a segment of at least n bytes on these memory nodes. If late, its pages come
// later; seals are added to the usual ones. It makes system calls, which take long for many pages.
func newSegment(name string, n int64, seals int, late bool, nodes []int) (*Segment, error) {
	if n < 0 || n > 1<<46 {
		return nil, fmt.Errorf("arena: a segment of %d bytes is out of range: no host has that "+
			"much memory; check the shape", n)
	}
	n = max((n+pageBytes-1)/pageBytes*pageBytes, pageBytes)
	if free, ok := availableMemory(); ok && n > free {
		return nil, fmt.Errorf("arena: a segment of %s does not fit: %s of memory are available "+
			"on this host; use smaller tensors, fewer workers a host, or a larger host",
			bytesText(n), bytesText(free))
	}
	fd, err := unix.MemfdCreate("shoal-"+name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("arena: memfd_create: %w", err)
	}
	s, err := makeSegment(fd, n, seals, late, nodes)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("arena: a segment of %s: %w", bytesText(n), err)
	}
	return s, nil
}

// makeSegment gives a memfd n bytes and maps it before it is sealed: a seal may leave what is
// mapped and forbid more of it. The segment takes the descriptor over only where that succeeds.
func makeSegment(fd int, n int64, seals int, late bool, nodes []int) (*Segment, error) {
	if err := unix.Ftruncate(fd, n); err != nil {
		return nil, err
	}
	placePages(fd, n, nodes)
	populate := 0
	if !late {
		if err := makePages(fd, n); err != nil {
			return nil, err
		}
		populate = unix.MAP_POPULATE
	}
	s, err := mapFD(fd, n, populate)
	if err != nil {
		return nil, err
	}
	if !late {
		s.filled.Store(n)
	}
	seals |= unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, errors.Join(fmt.Errorf("sealing: %w", err), unmap(s.Mem))
	}
	promised.Add(n - s.filled.Load())
	return s, nil
}

// makePages reserves all pages of a new file of n bytes, huge ones where it can, and blocks until
// the kernel has made them.
func makePages(fd int, n int64) error {
	fillHuge(fd, n)
	const piece = 64 << 20 // a signal makes fallocate start over; pieces bound what is lost
	for off := int64(0); off < n; off += piece {
		size := min(piece, n-off)
		for {
			err := unix.Fallocate(fd, 0, off, size)
			if err == nil {
				break
			}
			if !errors.Is(err, unix.EINTR) {
				return fmt.Errorf("reserving its pages: %w", err)
			}
		}
	}
	return nil
}

// fillBytes is how much memory Fill gives pages to at a time. Whoever closes the segment waits for
// that, and each call begins with a wait for all cores.
const fillBytes = 32 * hugeBytes

// Fill makes the next pages of a late segment, fillBytes of them, and keeps what is written there
// meanwhile; false: all pages are made or being made, or the segment is closed. Any goroutine may
// call it, and what it cannot make comes when it is touched.
func (s *Segment) Fill() bool {
	s.filling.RLock()
	defer s.filling.RUnlock()
	end := s.filled.Add(fillBytes)
	n := int64(len(s.Mem))
	if end-fillBytes >= n {
		return false
	}
	makeMappedPages(s.Mem[end-fillBytes : min(end, n)])
	promised.Add(end - fillBytes - min(end, n))
	return true
}

// OpenSegment maps a segment that arrived as a descriptor, and takes the descriptor over, also when
// it fails. The caller closes the segment.
func OpenSegment(fd int) (*Segment, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	if err == nil {
		var s *Segment
		if s, err = mapFD(fd, st.Size, unix.MAP_POPULATE); err == nil {
			s.filled.Store(st.Size)
			return s, nil
		}
	}
	unix.Close(fd)
	return nil, fmt.Errorf("arena: %w", err)
}

// mapFD maps the first n bytes of a descriptor as a segment, which takes the descriptor over only
// where that succeeds.
func mapFD(fd int, n int64, flags int) (*Segment, error) {
	mem, err := mapFile(fd, n, flags)
	if err != nil {
		return nil, fmt.Errorf("mapping: %w", err)
	}
	return &Segment{Mem: mem, fd: fd}, nil
}

// FD returns the descriptor to hand over. It stays the segment's.
func (s *Segment) FD() int { return s.fd }

// Close unmaps the segment, once Fill is not running. Nothing may use Mem afterwards.
func (s *Segment) Close() error {
	s.filling.Lock()
	defer s.filling.Unlock()
	if s.Mem == nil {
		return nil
	}
	promised.Add(min(s.filled.Load(), int64(len(s.Mem))) - int64(len(s.Mem)))
	err := unmap(s.Mem)
	s.Mem = nil
	return errors.Join(err, unix.Close(s.fd))
}

// promised counts the bytes of late segments whose pages are not made yet: nobody else can see that
// they will be needed.
var promised atomic.Int64

// availableMemory returns what the kernel and the control groups of this process would still give,
// in bytes, less what is promised, and less a twentieth to stay alive; false: they do not say. It
// reads files of the kernel.
func availableMemory() (int64, bool) {
	root := os.DirFS("/")
	free, ok := cgroup.MemInfo(root, "MemAvailable")
	if group, limited := cgroup.Read(root); limited && (!ok || group.Free < free) {
		free, ok = group.Free, true
	}
	return free - free/20 - promised.Load(), ok
}

// overcommits reports whether the kernel promises pages without counting them, as its file says.
func overcommits() bool {
	b, err := os.ReadFile("/proc/sys/vm/overcommit_memory")
	return err == nil && strings.TrimSpace(string(b)) != "2"
}

// bytesText writes a number of bytes for people.
func bytesText(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d bytes", n)
}
