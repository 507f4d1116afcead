package durable

import (
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
