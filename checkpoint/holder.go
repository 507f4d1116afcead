package checkpoint

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// Who works on a checkpoint already, for the error of a move that finds the journal locked.

// lockHolder describes, for an error, the process that has locked a file ("process 4711"), as far
// as the system tells: Linux lists locks with their process and inode in /proc, which it reads.
func lockHolder(f *os.File) string {
	const unknown = "another process"
	info, err := f.Stat()
	if err != nil {
		return unknown
	}
	at, known := info.Sys().(*syscall.Stat_t)
	locks, err := os.ReadFile("/proc/locks")
	if err != nil || !known {
		return unknown
	}
	for line := range strings.Lines(string(locks)) {
		words := strings.Fields(line)
		if len(words) > 5 && words[1] == "FLOCK" && words[4] != "0" &&
			strings.HasSuffix(words[5], fmt.Sprintf(":%d", at.Ino)) {
			return "process " + words[4] // 0 = outside this container
		}
	}
	return unknown
}
