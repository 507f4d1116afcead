package arena

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugeBytes is the size of a huge page. Where the processor's are larger, nothing here takes
// effect.
const hugeBytes = 2 << 20

// The functions of this file make system calls, which can take long where pages are made. Any
// goroutine may call them for memory, or a file, that is its own.

// mapFile maps the first n bytes of a file, to be read and written: from the size of a huge page on
// at such an address that huge pages are mapped as what they are. Flags are added to MAP_SHARED.
// The caller frees the memory with unmap; the descriptor stays its own.
func mapFile(fd int, n int64, flags int) ([]byte, error) {
	size, at := uintptr(n), unsafe.Pointer(nil)
	if n >= hugeBytes {
		page := uintptr(os.Getpagesize()) // which can be larger than those of segments
		pages := (size + page - 1) / page * page
		room, err := unix.MmapPtr(-1, 0, nil, pages+hugeBytes, unix.PROT_NONE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
		if err != nil {
			return nil, err
		}
		before := -uintptr(room) & (hugeBytes - 1)
		at, flags = unsafe.Add(room, before), flags|unix.MAP_FIXED
		err = unix.MunmapPtr(unsafe.Add(at, pages), hugeBytes-before)
		if before > 0 {
			err = errors.Join(err, unix.MunmapPtr(room, before))
		}
		if err != nil {
			return nil, errors.Join(err, unix.MunmapPtr(at, size))
		}
	}
	mem, err := unix.MmapPtr(fd, 0, at, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|flags)
	if err != nil {
		if at != nil {
			err = errors.Join(err, unix.MunmapPtr(at, size))
		}
		return nil, err
	}
	return unsafe.Slice((*byte)(mem), n), nil
}

// unmap undoes mapFile.
func unmap(mem []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)))
}

// fillHuge gives an empty file huge pages, as far as there are any and shmem_enabled is not `deny`.
// It is a hint: what it leaves out gets ordinary pages later. A collapse makes a huge page of
// whatever is there, so of one page and room for 511; it is the only way that is open in the
// kernel's default, which gives a memfd none by itself (madvise(2), Linux 6.1).
func fillHuge(fd int, n int64) {
	n -= n % hugeBytes
	for off := int64(0); off < n; off += hugeBytes {
		if err := unix.Fallocate(fd, 0, off, pageBytes); err != nil {
			return
		}
	}
	if n == 0 {
		return
	}
	mem, err := mapFile(fd, n, 0)
	if err != nil {
		return
	}
	defer unmap(mem)
	collapse(mem)
}

// collapse makes huge pages of the pages that mem has (madvise(2)). It is a hint.
func collapse(mem []byte) {
	for range 3 { // EAGAIN: another processor holds a page for a moment
		if err := unix.Madvise(mem, unix.MADV_COLLAPSE); !errors.Is(err, unix.EAGAIN) {
			return
		}
	}
}

// makeMappedPages makes the pages of mapped memory that other threads and processes may be using,
// huge ones where it can and small ones for the rest. mem starts at a huge page if it is as large
// as one. It is a hint: pages that are not made come when they are touched.
func makeMappedPages(mem []byte) {
	if huge := mem[:len(mem)-len(mem)%hugeBytes]; len(huge) > 0 {
		for off := 0; off < len(huge); off += hugeBytes {
			if err := unix.Madvise(huge[off:off+pageBytes], unix.MADV_POPULATE_WRITE); err != nil {
				return
			}
		}
		collapse(huge)
	}
	// before Linux 5.14 pages come when they are touched
	_ = unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
}
