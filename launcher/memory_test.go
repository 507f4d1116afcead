package launcher

import (
	"testing"
	"testing/fstest"
)

// A limit is told where it leaves less memory than the machine has.
func TestMemoryLimit(t *testing.T) {
	const mount = "32 31 0:29 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	for name, c := range map[string]struct{ limit, total, want string }{
		"below": {"1073741824", "MemTotal:        8388608 kB\n",
			"memory on this host is limited to 1.0 GiB by control group /sys/fs/cgroup/me"},
		"as much": {"1073741824", "MemTotal:        1048576 kB\n", ""},
		"more":    {"2147483648", "MemTotal:        1048576 kB\n", ""},
		"none":    {"max", "MemTotal:        8388608 kB\n", ""},
		"unknown machine": {"1610612736", "", "memory on this host is limited to 1.5 GiB by " +
			"control group /sys/fs/cgroup/me"},
	} {
		root := fstest.MapFS{
			"proc/meminfo":                    {Data: []byte("Hugepagesize: 2048 kB\n" + c.total)},
			"proc/self/mountinfo":             {Data: []byte(mount)},
			"proc/self/cgroup":                {Data: []byte("0::/me\n")},
			"sys/fs/cgroup/me/memory.max":     {Data: []byte(c.limit + "\n")},
			"sys/fs/cgroup/me/memory.current": {Data: []byte("4096\n")},
			"sys/fs/cgroup/me/memory.stat":    {Data: []byte("anon 4096\n")},
		}
		if got := memoryLimitText(root); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// The lowest limit is told, also where a group above has a higher one and others have used it up.
func TestMemoryLimitOfSeveralGroups(t *testing.T) {
	root := fstest.MapFS{
		"proc/meminfo":        {Data: []byte("MemTotal: 8388608 kB\n")},
		"proc/self/mountinfo": {Data: []byte("32 31 0:29 / /sys/fs/cgroup rw - cgroup2 c rw\n")},
		"proc/self/cgroup":    {Data: []byte("0::/all/me\n")},
	}
	for group, numbers := range map[string][2]string{"all": {"4294967296\n", "4290000000\n"},
		"all/me": {"1073741824\n", "4096\n"}} {
		folder := "sys/fs/cgroup/" + group
		root[folder+"/memory.max"] = &fstest.MapFile{Data: []byte(numbers[0])}
		root[folder+"/memory.current"] = &fstest.MapFile{Data: []byte(numbers[1])}
		root[folder+"/memory.stat"] = &fstest.MapFile{Data: []byte("anon 4096\n")}
	}
	want := "memory on this host is limited to 1.0 GiB by control group /sys/fs/cgroup/all/me"
	if got := memoryLimitText(root); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
