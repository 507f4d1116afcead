package durable

import (
	"errors"
	"syscall"
)

// Full reports whether err says that a disk is full, or that the quota on it is used up. It is
// pure.
func Full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
