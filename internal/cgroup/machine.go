package cgroup

import (
	"io/fs"
	"strconv"
	"strings"
)

// MemInfo returns what the kernel says of the memory of the whole machine under a key of
// /proc/meminfo, such as MemTotal or MemAvailable, in bytes. The root is "/" of this machine; known
// is false if the kernel says nothing under that key. Any goroutine may call it.
func MemInfo(root fs.FS, key string) (bytes int64, known bool) {
	text, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if rest, is := strings.CutPrefix(line, key+":"); is {
			size := strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB"))
			kib, err := strconv.ParseInt(size, 10, 64)
			return kib << 10, err == nil
		}
	}
	return 0, false
}
