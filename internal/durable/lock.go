package durable

import (
	"errors"
	"os"
	"syscall"
)

// Flock locks a file or a folder as flock(2) does with how, which may block; a signal does not end
// it. The lock ends with the file or the process.
func Flock(f *os.File, how int) error {
	for {
		if err := syscall.Flock(int(f.Fd()), how); err != syscall.EINTR {
			return err
		}
	}
}

// IsLocked reports whether a process has locked the file at a path by Flock for itself alone. It is
// false where there is no such file, and on a disk without locks. It does not block, and keeps no
// lock.
func IsLocked(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // which a pipe would block else
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(Flock(f, syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}
