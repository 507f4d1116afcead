package cgroup

import (
	"testing"
	"testing/fstest"
)

// TestMachine checks which lines of /proc/meminfo are read.
func TestMachine(t *testing.T) {
	const text = "MemTotal:       16384 kB\nMemAvailable:    8192 kB\nHugePages_Total:       x\n"
	root := fstest.MapFS{"proc/meminfo": {Data: []byte(text)}}
	for key, want := range map[string]int64{"MemTotal": 16 << 20, "MemAvailable": 8 << 20} {
		if got, known := MemInfo(root, key); got != want || !known {
			t.Errorf("%s is %d, %t; want %d", key, got, known, want)
		}
	}
	for _, key := range []string{"Mem", "HugePages_Total", "SwapFree"} {
		if got, known := MemInfo(root, key); known {
			t.Errorf("%s is %d, and the kernel does not say", key, got)
		}
	}
	if _, known := MemInfo(fstest.MapFS{}, "MemTotal"); known {
		t.Error("a machine without the file has memory")
	}
}
