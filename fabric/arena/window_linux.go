package arena

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Window is where a worker sees a shared result. What it shows changes with the members of
// the job; its address does not. One goroutine uses it at a time; its methods make system calls,
// which do not wait.
type Window struct {
	Mem []byte // the address and size of the window; nil after Close
	fd  int    // the descriptor of the result that it shows; -1 = memory of this process
}

// NewWindow makes a window of n bytes, which shows zeroed memory of this process. The caller closes
// it.
func NewWindow(n int) (*Window, error) {
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("arena: %s of memory: %w", bytesText(int64(n)), err)
	}
	return &Window{Mem: mem, fd: -1}, nil
}

// TryMemory returns an error if the system has no room for n bytes of memory of this process. It
// keeps none of them.
func TryMemory(n int) error {
	w, err := NewWindow(n)
	if err != nil {
		return err
	}
	return w.Close()
}

// Show makes the window show a result, which can then only be read: a write to Mem ends the
// process. It takes the descriptor over, also when it fails.
func (w *Window) Show(fd int) error {
	err := w.mapAtWindow(fd, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return errors.Join(fmt.Errorf("arena: showing a shared result: %w", err), unix.Close(fd))
	}
	err = w.closeShown()
	w.fd = fd
	return err
}

// MakeOwn makes what the window shows memory of this process, which it may write: others' writes
// are no longer seen where it has written itself.
func (w *Window) MakeOwn() error {
	if w.fd < 0 {
		return nil
	}
	if err := w.mapAtWindow(w.fd, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE); err != nil {
		return fmt.Errorf("arena: owning a shared result: %w", err)
	}
	return w.closeShown()
}

// mapAtWindow maps a descriptor, which stays the caller's, at the address of the window, in place
// of what it shows.
func (w *Window) mapAtWindow(fd, prot, flags int) error {
	_, err := unix.MmapPtr(fd, 0, unsafe.Pointer(&w.Mem[0]), uintptr(len(w.Mem)), prot,
		flags|unix.MAP_FIXED)
	return err
}

// closeShown closes the descriptor of what the window shows, if it has one.
func (w *Window) closeShown() error {
	fd := w.fd
	w.fd = -1
	if fd < 0 {
		return nil
	}
	return unix.Close(fd)
}

// Close unmaps the window. Nothing may use Mem afterwards.
func (w *Window) Close() error {
	if w.Mem == nil {
		return nil
	}
	err := unix.Munmap(w.Mem)
	w.Mem = nil
	return errors.Join(err, w.closeShown())
}
