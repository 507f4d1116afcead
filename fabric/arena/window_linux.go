package arena

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Window is where a worker sees a shared result. What lies behind it changes with the members of
// the job; its address does not.
type Window struct {
	Mem []byte // the address and size of the window; nil after Close
	fd  int    // the descriptor of the result behind the window; -1 = memory of this process
}

// NewWindow makes a window of n bytes, with zeroed memory of this process behind it.
func NewWindow(n int) (*Window, error) {
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("arena: a window of %s: %w", bytesText(int64(n)), err)
	}
	return &Window{Mem: mem, fd: -1}, nil
}

// Show puts a result behind the window, which can then only be read: a write to Mem ends the
// process. It takes the descriptor over, also when it fails.
func (w *Window) Show(fd int) error {
	err := w.mapBehind(fd, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return errors.Join(fmt.Errorf("arena: showing a shared result: %w", err), unix.Close(fd))
	}
	err = w.release()
	w.fd = fd
	return err
}

// Own makes what the window shows memory of this process, which it may write: others' writes are
// seen no more where it has written itself.
func (w *Window) Own() error {
	if w.fd < 0 {
		return nil
	}
	if err := w.mapBehind(w.fd, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE); err != nil {
		return fmt.Errorf("arena: owning a shared result: %w", err)
	}
	return w.release()
}

// mapBehind maps a descriptor at the address of the window.
func (w *Window) mapBehind(fd, prot, flags int) error {
	_, err := unix.MmapPtr(fd, 0, unsafe.Pointer(&w.Mem[0]), uintptr(len(w.Mem)), prot,
		flags|unix.MAP_FIXED)
	return err
}

// release closes the descriptor of what is behind the window.
func (w *Window) release() error {
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
	return errors.Join(err, w.release())
}
