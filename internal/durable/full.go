package durable

import (
	"errors"
	"syscall"
)

// Full reports whether an error says that a disk, or what one may use of it, is full.
func Full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
