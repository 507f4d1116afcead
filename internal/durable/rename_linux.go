package durable

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Rename gives a file or folder a name that nothing has yet; otherwise it fails with fs.ErrExist.
// On a file system that cannot check that, it replaces a file. Any goroutine may call it. It does
// not wait until the name is on the disk.
func Rename(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return os.Rename(from, to)
	case err != nil:
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}
