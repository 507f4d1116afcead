//go:build !linux

package durable

import "os"

// Rename gives a file or folder another name. On Linux it replaces nothing. Any goroutine may call
// it.
func Rename(from, to string) error { return os.Rename(from, to) }
