//go:build unix

package tcp

import "syscall"

// flushNow writes what was gathered as far as the kernel takes it without waiting, and reports whether that was all of it. Of an error the next Flush
// tells.
func (w *wire) flushNow() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	raw, err := w.TCPConn.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Write(func(fd uintptr) bool {
		if n, err := syscall.Write(int(fd), w.out); err == nil {
			w.out = append(w.out[:0], w.out[n:]...)
		}
		return true
	})
	return len(w.out) == 0
}
